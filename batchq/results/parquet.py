"""Results as an Arrow table, and as the Parquet file that holds it.

    source_id, source_version, processing_version, item_key    string
    output            fixed-size list of float (embed), of double (other vectors), or JSON text
    tokens_total, tokens_used                                  int64
    provenance        JSON text
    stored            struct of key, offset, length, sha256

Outputs are vectors if each is a list of as many numbers as the first, and a column of them
loses nothing; a document without text has a null. A vector's decimals go to Arrow's own
parser as they are, five times faster than by way of Python's numbers. While an export
grows, its part file holds Arrow batches one behind the other, since a Parquet file cannot
be continued.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchq.errors import UsageError
from batchq.item import item_key
from batchq.ledger.base import Ledger, Run
from batchq.results.checked import Checked, read_checked
from batchq.results.formats import Format, UnfitOutput
from batchq.results.journal import Buffer
from batchq.store.base import Store
from batchq.words import pip_install

if TYPE_CHECKING:
    import pyarrow

__all__ = ["parquet_forms"]

PAGE = 1024
ROW_GROUP_BYTES = 64 * 1024 * 1024

EXACT = 2**53
"""Up to here a double holds every integer."""

_NUMBERS = b"0123456789+-.eE,"


def parquet_forms(ledger: Ledger, run: Run, store: Store) -> list[Format]:
    """Vectors if the first output is one, and JSON text, which fits all.

    Raises UsageError where the library is not installed.
    """
    try:
        import pyarrow.compute
        import pyarrow.parquet  # noqa: F401  # asked for now, used while the file grows
    except ImportError:
        raise UsageError(
            "Parquet files need the library pyarrow",
            hint=pip_install("parquet"),
        ) from None
    dimension = _dimension(_first_output(ledger, run, store))
    # What embed computes are float32, and nothing is lost by saying so.
    kind = "float" if run.manifest.get("processor") == "embed" else "double"
    vectors: list[Format] = [Parquet(run, kind, dimension)] if dimension else []
    return [*vectors, Parquet(run, "json", 0)]


class Parquet:
    """`kind`: float or double, for vectors of `dimension` numbers; or json."""

    ahead = 2

    def __init__(self, run: Run, kind: str, dimension: int) -> None:
        import pyarrow as pa

        self._processing_version = run.processing_version
        self.name = f"parquet {kind} {dimension}"
        self._kind = kind
        self._dimension = dimension
        self._number = {"float": pa.float32(), "double": pa.float64()}.get(kind)
        text, whole = pa.string(), pa.int64()
        self._stored = pa.struct(
            [("key", text), ("offset", whole), ("length", whole), ("sha256", text)]
        )
        self._schema = pa.schema(
            [
                ("source_id", text),
                ("source_version", text),
                ("processing_version", text),
                ("item_key", text),
                ("output", pa.list_(self._number, dimension) if self._number else text),
                ("tokens_total", whole),
                ("tokens_used", whole),
                ("provenance", text),
                ("stored", self._stored),
            ]
        )

    def encode(self, portion: list[Checked]) -> Sequence[Buffer]:
        import pyarrow as pa

        outputs = [checked.line.output for checked in portion]
        provenances, totals, used = zip(*map(_rest, portion), strict=True)
        columns = [
            [checked.row.source_id for checked in portion],
            [checked.row.source_version for checked in portion],
            [self._processing_version] * len(portion),
            [self._item_key(checked) for checked in portion],
            self._vectors(portion, outputs) if self._number else _texts(outputs),
            totals,
            used,
            provenances,
            [checked.stored() for checked in portion],
        ]
        arrays = [
            column if isinstance(column, pa.Array) else pa.array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return [memoryview(batch.serialize())]

    def finish(self, part: Path) -> Path:
        """Row groups of a bounded size, so that no more than one is in memory."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        whole = part.with_suffix(".whole")
        with (
            pa.OSFile(str(part)) as source,
            # Decimals of a model's numbers repeat nothing: a dictionary of them is in vain.
            pq.ParquetWriter(
                str(whole),
                self._schema,
                compression="zstd",
                use_dictionary=["source_version", "processing_version"],
            ) as writer,
        ):
            waiting: list[pyarrow.RecordBatch] = []
            with suppress(EOFError):
                while True:
                    batch = pa.ipc.read_record_batch(pa.ipc.read_message(source), self._schema)
                    waiting.append(batch)
                    if sum(each.nbytes for each in waiting) >= ROW_GROUP_BYTES:
                        writer.write_table(pa.Table.from_batches(waiting))
                        waiting = []
            writer.write_table(pa.Table.from_batches(waiting, self._schema))
        with whole.open("rb") as file:
            os.fsync(file.fileno())
        return whole

    def _item_key(self, checked: Checked) -> str:
        row = checked.row
        return item_key(row.source_id, row.source_version, self._processing_version)

    def _vectors(self, portion: Sequence[Checked], outputs: Sequence[bytes]) -> Any:
        import pyarrow as pa
        from pyarrow import compute

        blank = b"0," * (self._dimension - 1) + b"0"
        rows = [blank if output == b"null" else output[1:-1] for output in outputs]
        texts = pa.array(rows, pa.large_binary()).cast(pa.large_string())
        lists = compute.split_pattern(texts, ",")
        try:
            numbers = lists.flatten().cast(self._number)
        except pa.ArrowInvalid:
            self._require_vectors(portion, outputs)
            raise
        fitting = compute.equal(compute.list_value_length(lists), self._dimension)
        listed = all(output[:1] in b"[n" for output in outputs)
        if not (listed and compute.all(fitting).as_py() and _all_finite(numbers)):
            self._require_vectors(portion, outputs)
        self._require_exact(portion, outputs, numbers)
        return pa.FixedSizeListArray.from_arrays(
            numbers,
            type=pa.list_(self._number, self._dimension),
            mask=pa.array([output == b"null" for output in outputs]),
        )

    def _require_vectors(self, portion: Sequence[Checked], outputs: Sequence[bytes]) -> None:
        for checked, output in zip(portion, outputs, strict=True):
            if output != b"null" and not _is_vector(output, self._dimension):
                raise UnfitOutput(
                    f"the output of {checked.row.source_id!r} is no list of "
                    f"{self._dimension} numbers, as the first one is"
                )

    def _require_exact(
        self, portion: Sequence[Checked], outputs: Sequence[bytes], numbers: Any
    ) -> None:
        """Refuse integers that a double may round."""
        from pyarrow import compute

        if self._kind != "double" or compute.max(compute.abs(numbers)).as_py() < EXACT:
            return
        for checked, output in zip(portion, outputs, strict=True):
            # A number with a decimal point or an exponent is no integer, whatever its size.
            whole = (each for each in json.loads(output) or [] if isinstance(each, int))
            if any(abs(each) > EXACT for each in whole):
                raise UnfitOutput(
                    f"the output of {checked.row.source_id!r} has an integer beyond 2**53, "
                    "which no double holds exactly"
                )


def _all_finite(numbers: Any) -> bool:
    """Infinity is what text that is no number may become, or a number that is too large."""
    from pyarrow import compute

    return bool(compute.all(compute.is_finite(numbers)).as_py())


def _is_vector(output: bytes, dimension: int) -> bool:
    row = output[1:-1]
    return (
        output[:1] == b"["
        and row != b""
        and row.count(b",") == dimension - 1
        and not row.translate(None, _NUMBERS)
    )


def _texts(outputs: Sequence[bytes]) -> list[str | None]:
    return [None if output == b"null" else output.decode() for output in outputs]


def _rest(checked: Checked) -> tuple[str, int, int]:
    """Provenance, tokens in the document and tokens used; the first as it is written."""
    closing = checked.line.closing
    # Behind the provenance are two numbers, so these are found from behind.
    before, _, numbers = closing.rpartition(b',"tokens_total":')
    total, _, used = numbers.removesuffix(b"}\n").partition(b',"tokens_used":')
    return before.partition(b',"provenance":')[2].decode(), int(total), int(used)


def _first_output(ledger: Ledger, run: Run, store: Store) -> bytes:
    after = 0
    while page := ledger.results(run, after, PAGE):
        for row in page:
            if not row.empty:
                return read_checked(run, store, row).output
        after = page[-1].item_id
    return b"null"


def _dimension(output: bytes) -> int:
    """How many numbers a vector has, or 0 for what is none."""
    dimension = output.count(b",") + 1
    return dimension if _is_vector(output, dimension) else 0
