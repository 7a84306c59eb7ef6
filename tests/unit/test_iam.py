"""The policies in configs/iam: enough for what each role does, and for nothing else."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from batchq.clock import ManualClock
from batchq.errors import AccessDenied, DocumentError
from batchq.result import Envelope, result_key, sha256_hex
from batchq.source.base import Found
from batchq.source.s3 import S3Reader, S3Source
from batchq.store.s3 import S3Limits, S3Store
from batchq.store.verified import find_result, write_result
from tests.faults.iam import allows
from tests.faults.s3_state import Stored
from tests.faults.strict_s3 import StrictS3
from tests.s3 import BUCKET, point_sdk_at, policy, strict_server

FOLDER = Path(__file__).parents[2] / "configs" / "iam"
ROLES = ["enqueuer", "worker", "auditor"]
"""None of them may delete."""
REMOVER = "remover"
MEBIBYTE = 1024 * 1024


def actions(role: str) -> set[str]:
    found: set[str] = set()
    for statement in policy(role)["Statement"]:
        named = statement["Action"]
        found |= {named} if isinstance(named, str) else set(named)
    return found


def lay(server: StrictS3, key: str, data: bytes = b"text") -> None:
    server.state.put(BUCKET, key, Stored(data, f'"{sha256_hex(data)[:32]}"'), create_only=False)


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], StrictS3]]:
    """Takes on a role, on a server that enforces each role's policy."""
    policies = {role: policy(role) for role in (*ROLES, REMOVER)}
    with strict_server(monkeypatch, policies=policies, versioned=True) as server:
        lay(server, "docs/a.md")

        def become_(role: str) -> StrictS3:
            point_sdk_at(server.url, monkeypatch, key=role)
            return server

        yield become_


def store(**limits: Any) -> S3Store:
    return S3Store(f"s3://{BUCKET}/results", limits=S3Limits(**limits), clock=ManualClock())


def envelope(number: int) -> Envelope:
    return Envelope(f"docs/{number}.md", "sha256:0", "stats-1", {"n": number}, 1, 1)


def put(where: S3Store, key: str, data: bytes = b"content") -> bool:
    return where.put_if_absent(key, data, sha256_hex(data))


# -- on paper --------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
def test_no_role_may_delete_or_grant_or_do_all(role: str) -> None:
    """Each action is named in full, and each is one of these."""
    harmless = {
        "s3:AbortMultipartUpload",
        "s3:GetBucketVersioning",
        "s3:GetObject",
        "s3:GetObjectVersion",
        "s3:ListBucket",
        "s3:ListBucketVersions",
        "s3:PutObject",
    }
    assert actions(role) <= harmless
    for delete in ("s3:DeleteObject", "s3:DeleteObjectVersion", "s3:DeleteBucket"):
        assert not [each for each in actions(role) if fnmatch.fnmatchcase(delete, each)]
        assert not allows(policy(role), delete, f"arn:aws:s3:::{BUCKET}/results/run-1/a")


@pytest.mark.parametrize("role", [*ROLES, REMOVER])
def test_every_statement_allows_and_names_one_bucket(role: str) -> None:
    """No wildcard where a bucket's name belongs; the placeholders are those of docs/s3.md."""
    for statement in json.loads((FOLDER / f"{role}.json").read_text())["Statement"]:
        assert statement["Effect"] == "Allow"
        assert statement["Sid"].isalnum()
        resources = statement["Resource"]
        for resource in [resources] if isinstance(resources, str) else resources:
            bucket, _, path = resource.removeprefix("arn:aws:s3:::").partition("/")
            kind = bucket.removesuffix("-BUCKET")
            assert kind in ("DOCUMENTS", "RESULTS")
            assert path == "" or path.startswith(f"{kind}-PREFIX/")


def test_the_auditor_writes_nothing() -> None:
    """Not even a probe. Removing orphans is a role of its own."""
    assert actions("auditor") == {"s3:GetObject", "s3:ListBucket"}
    assert actions(REMOVER) == actions("auditor") | {"s3:DeleteObject"}


@pytest.mark.parametrize("role", ["worker", "enqueuer"])
def test_whoever_writes_may_replace_nothing(role: str) -> None:
    """A put without the precondition is denied, whatever else may be wrong with the caller."""
    where = f"arn:aws:s3:::{BUCKET}/results/inputs/a"
    created = {"s3_ObjectCreationOperation": "true"}
    assert not allows(policy(role), "s3:PutObject", where, **created)
    assert allows(policy(role), "s3:PutObject", where, **created, s3_if_none_match="*")
    assert allows(policy(role), "s3:PutObject", where, s3_ObjectCreationOperation="false")


# -- in use ----------------------------------------------------------------------


def test_a_worker_may_do_what_it_does(become: Callable[[str], StrictS3]) -> None:
    """Probe, look up, write, read back, send in parts and give up, read documents."""
    server = become("worker")
    results = store(multipart_above=6 * MEBIBYTE, part=5 * MEBIBYTE)
    results.probe()
    for number in range(2):
        mine = envelope(number)
        key = result_key("run-1", mine.item_key, mine.source_id, 1)
        identity = {
            "source_id": mine.source_id,
            "source_version": mine.source_version,
            "processing_version": mine.processing_version,
        }
        assert find_result(results, key, **identity) is None
        write_result(results, key, mine, clock=ManualClock())
        assert find_result(results, key, **identity) is not None
    assert put(results, "run-1/large", b"x" * (7 * MEBIBYTE))
    assert server.count("CompleteMultipartUpload") == 2
    assert not server.state.uploads
    version = server.state.get(BUCKET, "docs/a.md").version
    locator = f"s3://{BUCKET}/docs/a.md?versionId={version}"
    assert S3Reader().read(locator, f"version:{version}", 10) == b"text"
    with pytest.raises(DocumentError) as caught:
        S3Reader().read(f"s3://{BUCKET}/docs/absent.md", "etag:1", 10)
    assert caught.value.cause == "source_missing"


def test_a_worker_may_do_nothing_else(become: Callable[[str], StrictS3]) -> None:
    """Delete, replace, write among the documents, read what is neither."""
    server = become("worker")
    lay(server, "private/salaries")
    lay(server, "results/run-1/a")
    s3 = boto3.session.Session().client("s3")
    refused: list[Callable[[], object]] = [
        lambda: s3.delete_object(Bucket=BUCKET, Key="results/run-1/a"),
        lambda: s3.put_object(Bucket=BUCKET, Key="results/run-1/a", Body=b"other"),
        lambda: s3.put_object(Bucket=BUCKET, Key="docs/a.md", Body=b"x", IfNoneMatch="*"),
        lambda: s3.get_object(Bucket=BUCKET, Key="private/salaries"),
        lambda: s3.list_objects_v2(Bucket=BUCKET, Prefix="private/"),
    ]
    for call in refused:
        with pytest.raises(ClientError, match="AccessDenied"):
            call()
    assert server.state.get(BUCKET, "results/run-1/a").data == b"text"


def test_an_enqueuer_may_list_documents_and_prepare_a_run(
    become: Callable[[str], StrictS3],
) -> None:
    """And writes no result."""
    become("enqueuer")
    [found] = S3Source(f"s3://{BUCKET}/docs").list()
    assert isinstance(found, Found)
    assert found.source_version is not None
    assert found.source_version.startswith("version:")
    S3Reader().fingerprint(found.locator)
    results = store()
    results.probe()
    for key in ("run-1/run.json", f"inputs/{sha256_hex(b'content')}"):
        assert put(results, key)
        assert results.read(key) == b"content"
    with pytest.raises(AccessDenied):
        put(results, "run-1/ab/result.json")


def test_an_auditor_may_read_every_result_and_write_none(
    become: Callable[[str], StrictS3],
) -> None:
    """It needs no probe: it believes no digest and reads the bytes."""
    become("worker")
    put(store(), "run-1/ab/a.json")
    become("auditor")
    results = store()
    assert [info.key for info in results.list("")] == ["run-1/ab/a.json"]
    assert [info.key for info in results.list("run-1/")] == ["run-1/ab/a.json"]
    assert results.read("run-1/ab/a.json") == b"content"
    assert results.head("run-1/ab/absent.json") is None
    with pytest.raises(AccessDenied):
        put(results, "run-1/ab/b.json")
    with pytest.raises(AccessDenied):
        results.probe()


def test_a_remover_may_remove_results_and_nothing_else(become: Callable[[str], StrictS3]) -> None:
    """Whatever it is told: markers, staged documents and probes stay, and it writes nothing."""
    orphans = [f"run-1/ab/{'0' * 32}-a.g2.json", f"run-1/shards/{'0' * 32}.jsonl.zst"]
    others = ["run-1/run.json", f"inputs/{'0' * 64}", "run-1/notes/a.json"]
    server = become("worker")
    for key in (*orphans, *others):
        lay(server, f"results/{key}")
    lay(server, "results/.probe/aa")
    become(REMOVER)
    results = store()
    assert sorted(info.key for info in results.list("")) == sorted([*orphans, *others])
    for key in orphans:
        assert results.read(key) == b"text"
        results.delete(key)
    for key in others:
        with pytest.raises(AccessDenied):
            results.delete(key)
    with pytest.raises(AccessDenied):
        put(results, orphans[0])
    with pytest.raises(ClientError, match="AccessDenied"):
        boto3.session.Session().client("s3").delete_object(Bucket=BUCKET, Key="results/.probe/aa")
    assert [info.key for info in results.list("")] == sorted(others)
