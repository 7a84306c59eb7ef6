"""The S3 store where it meets servers, rights, credentials and the size of objects."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from batchq.clock import ManualClock
from batchq.errors import AccessDenied, BatchqError, ExitCode, StoreUnusable, UsageError
from batchq.result import sha256_hex
from batchq.s3.refusals import Refusal
from batchq.store import s3_bucket
from batchq.store.base import StoreError
from batchq.store.s3 import S3Limits, S3Store
from batchq.store.s3_refusals import explain
from tests.faults.strict_s3 import Fault, Honesty, StrictS3
from tests.s3 import BUCKET, point_sdk_at, strict_server
from tests.unit.patience import comes_true

MEBIBYTE = 1024 * 1024
IN_PARTS = S3Limits(multipart_above=6 * MEBIBYTE, part=5 * MEBIBYTE)
LARGE = bytes(range(256)) * (4 * 6 * 1024) + b"and more than six mebibytes"

Opener = Callable[..., tuple[StrictS3, S3Store]]


@pytest.fixture
def open_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    """Opens a server with these options and an unprobed store in it."""
    running = []

    def open_(
        *, limits: S3Limits | None = None, clock: ManualClock | None = None, **options: Any
    ) -> tuple[StrictS3, S3Store]:
        context = strict_server(monkeypatch, **options)
        running.append(context)
        server = context.__enter__()
        return server, S3Store(
            f"s3://{BUCKET}/results", limits=limits, clock=clock or ManualClock()
        )

    yield open_
    for context in running:
        context.__exit__(None, None, None)


def put(store: S3Store, key: str = "run-1/one", data: bytes = b"content") -> bool:
    return store.put_if_absent(key, data, sha256_hex(data))


def is_answered(store: S3Store) -> bool:
    try:
        return store.head("run-1/none") is None
    except StoreError:
        return False


# -- addresses -------------------------------------------------------------------


def test_an_address_is_a_bucket_and_a_prefix() -> None:
    """With or without a slash at the end, and never with more than that."""
    assert S3Store("s3://bucket").url == "s3://bucket"
    assert S3Store("s3://bucket/some/prefix/").url == "s3://bucket/some/prefix"


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///prefix",
        "https://bucket/prefix",
        "s3://AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI@bucket/prefix",
        "s3://bucket:9000/prefix",
        "s3://bucket?region=eu-west-1",
        "s3://bucket/a//b",
        "s3://bucket/../b",
        "s3://bucket/.hidden",
    ],
)
def test_another_form_of_address_is_refused_without_its_secrets(url: str) -> None:
    """Credentials do not belong into an address, nor endpoints and regions."""
    with pytest.raises(UsageError) as caught:
        S3Store(url)
    assert "wJalrXUtnFEMI" not in str(caught.value)
    assert caught.value.hint


# -- the probe -------------------------------------------------------------------


@pytest.mark.parametrize("honesty", [Honesty.REPLACES, Honesty.TWO_WINNERS])
def test_a_server_that_replaces_objects_is_found_out(open_store: Opener, honesty: Honesty) -> None:
    """Whether always, or only where two writers meet."""
    _, store = open_store(honesty=honesty)
    with pytest.raises(StoreUnusable, match="If-None-Match") as caught:
        store.probe()
    assert caught.value.hint
    assert caught.value.exit_code == ExitCode.STORE_UNUSABLE


def test_a_server_that_checks_no_checksum_is_not_believed(
    open_store: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be used, but what it says of digests is not repeated; and that is said once."""
    server, store = open_store(honesty=Honesty.UNCHECKED)
    store.probe()
    assert "read back in full" in caplog.text
    put(store)
    assert server.state.get(BUCKET, "results/run-1/one").sha256 is not None
    assert (info := store.head("run-1/one")) is not None
    assert info.sha256 is None


def test_a_server_is_believed_only_after_it_was_proven(open_store: Opener) -> None:
    """The digest that it computed is repeated once it has refused a wrong one."""
    _, store = open_store()
    put(store)
    for digest in (None, sha256_hex(b"content")):
        assert (info := store.head("run-1/one")) is not None
        assert digest == info.sha256
        store.probe()


def test_probes_do_not_pile_up_and_are_shown_to_nobody(open_store: Opener) -> None:
    """A worker may not delete: all probes there will ever be share a few places."""
    server, store = open_store()
    for _ in range(40):
        store.probe()
    left = server.state.keys(BUCKET)
    assert len(left) <= 40
    assert all(len(path) == len("results/.probe/xx") for path in left)
    assert list(store.list("")) == []
    assert server.count("DeleteObject") == 0
    assert not server.state.uploads


@pytest.mark.parametrize("fault", [Fault.CUT_AFTER, Fault.ERROR_AFTER, Fault.CONFLICT])
def test_a_probe_survives_a_lost_answer(open_store: Opener, fault: Fault) -> None:
    """A write that took effect and was asked for again is no second winner."""
    server, store = open_store()
    for _ in range(5):
        server.inject("PutObject", fault, Fault.ERROR)
        store.probe()


def test_nothing_is_created_with_a_checksum_that_others_refuse(open_store: Opener) -> None:
    """SHA-256 alone: some servers answer 400 to the CRC that the SDK adds by itself."""
    server, store = open_store()
    put(store)
    sent = {name.lower() for name in server.headers["PutObject"] if "checksum" in name.lower()}
    assert sent == {"x-amz-checksum-sha256", "x-amz-sdk-checksum-algorithm"}


# -- who may ---------------------------------------------------------------------


def test_without_the_right_to_list_absence_cannot_be_told(open_store: Opener) -> None:
    """A missing object would read as a forbidden one: that is said at the start, with the fix."""
    _, store = open_store(may_list=False)
    with pytest.raises(AccessDenied, match="missing") as caught:
        store.probe()
    assert caught.value.hint is not None
    assert "s3:ListBucket" in caught.value.hint
    assert put(store)
    assert store.read("run-1/one") == b"content"
    for verb in (store.read, store.head):
        with pytest.raises(AccessDenied):
            verb("run-1/absent")


def test_a_missing_bucket_is_named(open_store: Opener) -> None:
    """Not as a missing object, and not for the network's sake."""
    open_store()
    store = S3Store("s3://nowhere/results", clock=ManualClock())
    for verb in (
        store.probe,
        lambda: put(store),
        lambda: store.read("a"),
        lambda: list(store.list("")),
    ):
        with pytest.raises(StoreUnusable, match="NoSuchBucket"):
            verb()


def test_nobody_at_the_endpoint_ends_the_command_with_advice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unreachable is unknown in the middle of a run, and unusable at its start."""
    point_sdk_at("http://127.0.0.1:9", monkeypatch)
    store = S3Store("s3://bucket/results", clock=ManualClock())
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:9"):
        store.read("a")
    with pytest.raises(StoreUnusable, match=r"127\.0\.0\.1:9") as caught:
        store.probe()
    assert caught.value.hint is not None
    assert "AWS_ENDPOINT_URL_S3" in caught.value.hint


def test_an_unknown_key_is_told_from_a_missing_right(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no credential is part of what is said about it."""
    server, store = open_store(policies={"someone-else": {"Statement": []}})
    point_sdk_at(server.url, monkeypatch, key="AKIAIOSFODNN7EXAMPLE")
    with pytest.raises(AccessDenied, match="InvalidAccessKeyId") as caught:
        put(store)
    shown = "".join(traceback.format_exception(caught.value)) + str(caught.value.hint)
    assert "test-secret" not in shown
    assert "AKIAIOSFODNN7EXAMPLE" not in shown


def test_no_credentials_at_all_are_access_denied_with_the_way_to_set_them(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 12, before anything is sent."""
    server, store = open_store()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AccessDenied) as caught:
        store.probe()
    assert caught.value.exit_code == ExitCode.ACCESS_DENIED
    assert "AWS_PROFILE" in str(caught.value.hint)
    assert server.log == []


@pytest.mark.parametrize("endpoint", ["not a url", "ftp//x"])
def test_a_broken_endpoint_is_a_usage_error(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is what is wrong, and the message says so."""
    point_sdk_at(endpoint, monkeypatch)
    with pytest.raises(UsageError, match="endpoint") as caught:
        S3Store("s3://bucket").probe()
    assert "AWS_*" in str(caught.value.hint)


# -- credentials that expire in the middle ---------------------------------------


def credentials_file(path: Path, key: str) -> None:
    path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = s\n")


@pytest.fixture
def in_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], Path]:
    """Makes the SDK take its credentials from a file, at first those of `old`."""

    def use() -> Path:
        path = tmp_path / "credentials"
        credentials_file(path, "old")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        return path

    return use


def test_credentials_replaced_in_their_file_are_taken_up(
    open_store: Opener, in_file: Callable[[], Path]
) -> None:
    """Whoever issued them has issued new ones: the worker goes on without a word."""
    server, store = open_store()
    path = in_file()
    put(store)
    credentials_file(path, "new")
    server.expired.add("old")
    assert store.read("run-1/one") == b"content"
    assert store.head("run-1/one") is not None


def test_credentials_that_stay_expired_end_the_command(
    open_store: Opener, in_file: Callable[[], Path]
) -> None:
    """Nobody renews them by waiting; the message says what does."""
    server, store = open_store()
    in_file()
    put(store)
    server.expired.add("old")
    for verb in (lambda: put(store, "run-1/two"), lambda: store.head("run-1/one"), store.probe):
        with pytest.raises(AccessDenied) as caught:
            verb()
        assert "new credentials" in str(caught.value.hint)


def test_credentials_that_the_sdk_refreshes_are_waited_for(
    open_store: Opener, in_file: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance's role gets new ones by itself: the item is released, the worker lives."""
    server, store = open_store()
    in_file().unlink()
    answer, config = tmp_path / "answer.json", tmp_path / "config"

    def issue(key: str) -> None:
        answer.write_text(
            json.dumps(
                {
                    "Version": 1,
                    "AccessKeyId": key,
                    "SecretAccessKey": "s",
                    "SessionToken": "t",
                    "Expiration": "2099-01-01T00:00:00Z",
                }
            )
        )

    tell = tmp_path / "tell.py"
    tell.write_text(f"print(open({str(answer)!r}).read())")
    config.write_text(f"[default]\ncredential_process = {sys.executable} {tell}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    issue("first")
    put(store)
    server.expired.add("first")
    with pytest.raises(StoreError, match="ExpiredToken"):
        put(store, "run-1/two")
    issue("second")
    assert put(store, "run-1/two")


# -- bounds ----------------------------------------------------------------------


def test_a_server_that_says_slow_down_is_asked_a_few_times_with_growing_pauses(
    open_store: Opener,
) -> None:
    """Then the outcome is unknown, and whoever called decides."""
    clock = ManualClock()
    server, store = open_store(limits=S3Limits(attempts=4, backoff=1.0), clock=clock)
    server.inject("GetObject", *[Fault.SLOW_DOWN] * 9)
    began = clock.monotonic()
    with pytest.raises(StoreError, match="SlowDown"):
        store.read("run-1/one")
    assert server.count("GetObject") == 4
    assert 3.5 <= clock.monotonic() - began <= 7.0


@pytest.mark.parametrize("operation", ["PutObject", "GetObject", "HeadObject", "ListObjectsV2"])
def test_silence_is_a_broken_connection_on_every_call(open_store: Opener, operation: str) -> None:
    """No call waits longer than its timeout."""
    server, store = open_store(limits=S3Limits(timeout=0.1, attempts=2))
    # Where the bucket is must be known by then, from a server that may be slow to tell.
    assert comes_true(lambda: is_answered(store))
    before = server.count(operation)
    server.inject(operation, *[Fault.SILENCE] * 2)
    verbs: dict[str, Callable[[], object]] = {
        "PutObject": lambda: put(store),
        "GetObject": lambda: store.read("run-1/one"),
        "HeadObject": lambda: store.head("run-1/one"),
        "ListObjectsV2": lambda: list(store.list("")),
    }
    with pytest.raises(StoreError, match=r"(?i)timeout"):
        verbs[operation]()
    assert comes_true(lambda: server.count(operation) == before + 2)


def test_a_listing_survives_a_page_that_is_cut_off(open_store: Opener) -> None:
    """Pages are asked for by the last key, so any one of them can be asked for again."""
    server, store = open_store(page=3)
    keys = [f"run-1/{number:02d}" for number in range(10)]
    for key in keys:
        put(store, key)
    server.inject("ListObjectsV2", Fault.CUT_BODY, Fault.ERROR, Fault.CUT_AFTER)
    assert keys == [info.key for info in store.list("")]
    assert server.count("ListObjectsV2") == 4 + 3


def test_a_server_that_lists_the_same_page_for_ever_is_found_out(open_store: Opener) -> None:
    """Rather than hold the first page's objects up as a listing without an end."""
    _, store = open_store(page=3, honesty=Honesty.LISTS_ANEW)
    for number in range(10):
        put(store, f"run-1/{number:02d}")
    with pytest.raises(StoreUnusable, match="lists"):
        list(store.list(""))


# -- in parts --------------------------------------------------------------------


def test_a_large_object_is_sent_in_parts_with_its_whole_digest_beside_it(
    open_store: Opener,
) -> None:
    """The digest of digests that the server has is no digest of the bytes."""
    server, store = open_store(limits=IN_PARTS)
    store.probe()
    assert put(store, data=LARGE)
    assert not put(store, data=LARGE)
    stored = server.state.get(BUCKET, "results/run-1/one")
    assert stored.metadata == {"x-amz-meta-sha256": sha256_hex(LARGE)}
    assert stored.sha256 is not None
    assert stored.sha256.endswith("-2")
    assert store.read("run-1/one") == LARGE
    assert store.read("run-1/one", 5 * MEBIBYTE - 1, 3) == LARGE[5 * MEBIBYTE - 1 :][:3]
    assert (info := store.head("run-1/one")) is not None
    assert (info.size, info.sha256) == (len(LARGE), None)


def test_an_object_of_any_size_is_sent_in_no_more_parts_than_a_server_takes(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export of a hundred million vectors has more than 10,000 times 16 MiB."""
    monkeypatch.setattr(s3_bucket, "MOST_PARTS", 4)
    limits = S3Limits(multipart_above=16, part=8)
    server, store = open_store(limits=limits, min_part=1)
    store.probe()
    before = server.count("UploadPart")
    assert put(store, data=bytes(range(101)))
    assert server.count("UploadPart") - before == 4
    assert store.read("run-1/one") == bytes(range(101))


def test_a_large_object_that_exists_is_not_sent_again(open_store: Opener) -> None:
    """Only the last request could be refused, so the first one looks."""
    server, store = open_store(limits=IN_PARTS)
    store.probe()
    put(store, data=b"small, and first")
    sent = server.count("UploadPart")
    assert not put(store, data=LARGE)
    assert sent == server.count("UploadPart")
    assert store.read("run-1/one") == b"small, and first"


def test_a_large_object_that_comes_second_replaces_nothing(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker finished between our look and our last request; our parts are given up."""
    server, store = open_store(limits=IN_PARTS)
    store.probe()
    monkeypatch.setattr(store._bucket, "_exists", lambda path: False)
    put(store, data=b"theirs")
    assert not put(store, data=LARGE)
    assert store.read("run-1/one") == b"theirs"
    assert not server.state.uploads


def test_a_large_object_that_fails_leaves_no_parts(open_store: Opener) -> None:
    """Parts are paid for by the month."""
    server, store = open_store(limits=IN_PARTS)
    store.probe()
    server.inject("UploadPart", *[Fault.ERROR] * 9)
    with pytest.raises(StoreError):
        put(store, data=LARGE)
    assert not server.state.uploads


@pytest.mark.parametrize("probed", [True, False])
def test_parts_are_used_only_where_they_are_proven_to_replace_nothing(
    open_store: Opener, probed: bool
) -> None:
    """Some servers heed the precondition of a put, and not that of an upload in parts."""
    server, store = open_store(limits=IN_PARTS, honesty=Honesty.REPLACES_BY_PARTS)
    if probed:
        store.probe()
    parts = server.count("UploadPart")
    assert put(store, data=LARGE)
    assert not put(store, data=LARGE[:-1])
    assert parts == server.count("UploadPart")
    assert store.read("run-1/one") == LARGE


# -- what refusals mean ----------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "AccessDenied", AccessDenied),
        (403, "403", AccessDenied),
        (403, "SignatureDoesNotMatch", AccessDenied),
        (403, "RequestTimeTooSkewed", AccessDenied),
        (400, "ExpiredToken", AccessDenied),
        (400, "400", AccessDenied),
        (400, "KMS.DisabledException", AccessDenied),
        (301, "PermanentRedirect", StoreUnusable),
        (400, "AuthorizationHeaderMalformed", StoreUnusable),
        (400, "KeyTooLongError", StoreUnusable),
        (403, "QuotaExceeded", StoreUnusable),
        (404, "NoSuchBucket", StoreUnusable),
        (501, "NotImplemented", StoreUnusable),
        (507, "XMinioStorageFull", StoreUnusable),
        (507, "NeverSeenBefore", StoreUnusable),
        (400, "BadDigest", StoreError),
        (500, "InternalError", StoreError),
        (418, "NeverSeenBefore", StoreError),
    ],
)
def test_each_refusal_is_the_error_that_asking_again_can_or_cannot_mend(
    status: int, code: str, kind: type[Exception]
) -> None:
    """Each with the place; those that end a command with the way to mend it."""
    error = explain(Refusal("PutObject", status, code, "As it is."), "s3://bucket/run-1/one")
    assert type(error) is kind
    assert "s3://bucket/run-1/one" in str(error)
    assert str(status) in str(error)
    assert not isinstance(error, BatchqError) or error.hint


@pytest.mark.parametrize(
    ("status", "code", "passing"),
    [
        (409, "ConditionalRequestConflict", True),
        (409, "OperationAborted", True),
        (429, "TooManyRequests", True),
        (500, "InternalError", True),
        (503, "SlowDown", True),
        (400, "RequestTimeout", True),
        (400, "KMS.ThrottlingException", True),
        (400, "KMS.DisabledException", False),
        (412, "PreconditionFailed", False),
        (403, "AccessDenied", False),
        (404, "NoSuchKey", False),
        (400, "BadDigest", False),
        (501, "NotImplemented", False),
        (507, "InsufficientStorage", False),
    ],
)
def test_only_a_passing_refusal_is_asked_again(status: int, code: str, passing: bool) -> None:
    """A conflict passes; a precondition that failed is an answer."""
    assert passing == Refusal("PutObject", status, code, "").passing
