"""Documents in S3: what is listed, under which version, and what is read again."""

from __future__ import annotations

import base64
import hashlib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from batchq.clock import ManualClock
from batchq.errors import AccessDenied, DocumentError, UsageError
from batchq.s3 import client
from batchq.s3.refusals import Refusal
from batchq.source.base import Found, Skipped, SourceUnavailable
from batchq.source.readers import AnyReader
from batchq.source.s3 import S3Reader, S3Source
from batchq.source.s3_names import from_s3_locator, to_s3_locator
from batchq.source.s3_refusals import of_document
from tests.faults.s3_state import Stored
from tests.faults.strict_s3 import Fault, StrictS3
from tests.s3 import BUCKET, moto_bucket, point_sdk_at, strict_server

ENOUGH = 1 << 20


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., StrictS3]]:
    """Starts a server with these options and an empty bucket."""
    running = []

    def start_(**options: Any) -> StrictS3:
        running.append(strict_server(monkeypatch, **options))
        return running[-1].__enter__()

    yield start_
    for context in running:
        context.__exit__(None, None, None)


def lay(server: StrictS3, key: str, data: bytes = b"text", *, digest: bool = False) -> Stored:
    """Put an object there past the protocol, with or without a SHA-256 of the store's own."""
    checksum = base64.b64encode(hashlib.sha256(data).digest()).decode() if digest else None
    etag = f'"{hashlib.md5(data).hexdigest()}"'
    return server.state.put(BUCKET, key, Stored(data, etag, checksum), create_only=False)


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def names(url: str, **options: Any) -> list[str]:
    return [
        found.source_id for found in S3Source(url, **options).list() if isinstance(found, Found)
    ]


# -- which -----------------------------------------------------------------------


def test_a_folder_is_listed_in_pages_in_the_order_of_keys(start: Callable[..., StrictS3]) -> None:
    """Each key once, whatever a page holds, and nothing of the folder beside it."""
    server = start(page=4)
    keys = [f"docs/{number:02d}.md" for number in range(11)]
    for key in [*keys, "docs-old/a.md", "docs.md", "other/a.md"]:
        lay(server, key)
    assert [f"s3://{BUCKET}/{key}" for key in keys] == names(f"s3://{BUCKET}/docs")
    assert server.count("ListObjectsV2") == 1 + 3
    assert server.count("HeadObject") == server.count("GetObject") == 0


def test_a_source_is_an_object_a_folder_or_a_whole_bucket(start: Callable[..., StrictS3]) -> None:
    """And a folder and the object of its name are both meant."""
    server = start()
    for key in ("docs/a.md", "docs", "b.md"):
        lay(server, key)
    everything = [f"s3://{BUCKET}/{key}" for key in ("b.md", "docs", "docs/a.md")]
    assert everything == names(f"s3://{BUCKET}")
    assert everything[1:] == names(f"s3://{BUCKET}/docs")
    assert everything[2:] == names(f"s3://{BUCKET}/docs/")
    assert everything[:1] == names(f"s3://{BUCKET}/b.md")


def test_a_prefix_stands_for_the_folders_name(start: Callable[..., StrictS3]) -> None:
    """So that the same documents keep their ids when they move to another bucket."""
    server = start()
    lay(server, "v2/docs/guide/a.md")
    assert names(f"s3://{BUCKET}/v2/docs", prefix="docs") == ["docs/guide/a.md"]
    assert names(f"s3://{BUCKET}/v2/docs/guide/a.md", prefix="docs") == ["docs/a.md"]
    assert names(f"s3://{BUCKET}", prefix="docs") == ["docs/v2/docs/guide/a.md"]


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        ([], [], ["a.md", "b.txt", "guide/c.md", "guide/deep/d.md"]),
        (["*.md"], [], ["a.md", "guide/c.md", "guide/deep/d.md"]),
        (["guide/"], [], ["guide/c.md", "guide/deep/d.md"]),
        (["guide"], ["deep"], ["guide/c.md"]),
        ([], ["guide/**"], ["a.md", "b.txt"]),
        ([".hidden/*"], [], [".hidden/e.md"]),
        (["*.rst"], [], []),
    ],
)
def test_patterns_mean_what_they_mean_for_folders(
    start: Callable[..., StrictS3], include: list[str], exclude: list[str], expected: list[str]
) -> None:
    """Names that begin with a dot are passed over unless a pattern names the dot."""
    server = start()
    for key in ("a.md", "b.txt", "guide/c.md", "guide/deep/d.md", ".hidden/e.md", "guide/.f.md"):
        lay(server, f"docs/{key}")
    found = names(f"s3://{BUCKET}/docs", include=include, exclude=exclude)
    assert [f"s3://{BUCKET}/docs/{key}" for key in expected] == found


@pytest.mark.parametrize("key", ["a//b.md", "/b.md", "a///c//b.md"])
def test_patterns_see_nothing_between_two_slashes(start: Callable[..., StrictS3], key: str) -> None:
    """What joins a folder that ends in a slash with a name makes such keys."""
    server = start()
    lay(server, f"docs/{key}")
    lay(server, "docs/z.txt")
    for patterns in (["*.md"], ["**/b.md"]):
        found = names(f"s3://{BUCKET}/docs", include=patterns)
        assert [f"s3://{BUCKET}/docs/{key}"] == found
        left = names(f"s3://{BUCKET}/docs", exclude=patterns)
        assert [f"s3://{BUCKET}/docs/z.txt"] == left


def test_keys_of_every_kind_are_listed_and_read_again(start: Callable[..., StrictS3]) -> None:
    """What would mean something in an address means itself in a key."""
    server = start()
    keys = [
        "a b",
        "a#b",
        "a?versionId=x",
        "a%20b",
        "a+b",
        "ä/日本",
        "a//b",
        "emoji-🎈",
        "a&b=c",
        "a\nb",
    ]
    for key in keys:
        lay(server, f"docs/{key}", key.encode())
    found = [each for each in S3Source(f"s3://{BUCKET}/docs").list() if isinstance(each, Found)]
    assert sorted(f"s3://{BUCKET}/docs/{key}" for key in keys) == [f.source_id for f in found]
    reader = AnyReader()
    for each in found:
        assert each.source_version is not None
        data = reader.read(each.locator, each.source_version, ENOUGH)
        assert each.source_id == f"s3://{BUCKET}/docs/{data.decode()}"


def test_a_key_with_a_nul_is_named_and_harms_no_other(start: Callable[..., StrictS3]) -> None:
    """PostgreSQL would refuse the whole batch that it is in."""
    server = start()
    for key in ("docs/a", "docs/b\0", "docs/c"):
        lay(server, key)
    listed = list(S3Source(f"s3://{BUCKET}/docs").list())
    assert [each.source_id[-1] for each in listed if isinstance(each, Found)] == ["a", "c"]
    [skipped] = [each for each in listed if isinstance(each, Skipped)]
    assert skipped.reason == "its key holds a NUL, which no ledger keeps: rename it"


@pytest.mark.parametrize(
    ("avoid", "expected"),
    [
        (["s3://bucket/docs/results"], ["docs/a.md", "docs/results-of-others/c.md"]),
        (["s3://other/docs/results", "batchq-data/results"], None),
        (["s3://bucket", "s3://bucket/do"], None),
    ],
)
def test_results_are_no_documents(
    start: Callable[..., StrictS3], avoid: list[str], expected: list[str] | None
) -> None:
    """Where they lie below a folder that is enqueued, they are passed over."""
    server = start()
    keys = ["docs/a.md", "docs/results-of-others/c.md", "docs/results/run-1/b.json"]
    for key in keys:
        lay(server, key)
    found = names(f"s3://{BUCKET}/docs", avoid=avoid)
    assert [f"s3://{BUCKET}/{key}" for key in (keys if expected is None else expected)] == found
    with pytest.raises(UsageError, match="is where the results lie"):
        S3Source(f"s3://{BUCKET}/docs", avoid=[f"s3://{BUCKET}/docs/"])


@pytest.mark.parametrize("version", [None, "v1", "a/b+c?d=e#f"])
def test_a_locator_is_read_back_as_it_was_written(version: str | None) -> None:
    """Bucket, key and version."""
    for key in ("a", "a/b?c#d", "ä %41", "/a"):
        assert (BUCKET, key, version) == from_s3_locator(to_s3_locator(BUCKET, key, version))
    with pytest.raises(DocumentError):
        from_s3_locator("file:///a")


def test_folders_of_consoles_and_archives_are_no_documents(start: Callable[..., StrictS3]) -> None:
    """The first are nothing, the second are passed over by name."""
    server = start()
    lay(server, "docs/", b"")
    lay(server, "docs/guide/", b"")
    lay(server, "docs/guide/a.md")
    archived = lay(server, "docs/guide/b.md")
    server.archived.add("docs/guide/b.md")
    found = list(S3Source(f"s3://{BUCKET}/docs").list())
    assert [type(each) for each in found] == [Found, Skipped]
    assert isinstance(found[1], Skipped)
    assert "GLACIER" in found[1].reason
    assert archived.data


def test_what_has_bytes_is_a_document_though_it_is_named_like_a_folder(
    start: Callable[..., StrictS3],
) -> None:
    """Sites keep their pages so: `about/` is one."""
    server = start()
    for key in ("docs/", "docs/about/"):
        lay(server, key)
    found = names(f"s3://{BUCKET}/docs")
    assert [f"s3://{BUCKET}/docs/", f"s3://{BUCKET}/docs/about/"] == found
    assert names(f"s3://{BUCKET}/docs", prefix="site") == ["site/", "site/about/"]
    assert [f"s3://{BUCKET}/docs/about/"] == names(f"s3://{BUCKET}/docs", include=["about"])


@pytest.mark.parametrize(
    "url", ["s3://", "s3:///a", "s3://AKIAIOSFODNN7EXAMPLE:secret@bucket/a", "s3://bucket:1/a"]
)
def test_another_form_of_address_is_refused_without_its_secrets(url: str) -> None:
    """Credentials do not belong into an address."""
    with pytest.raises(UsageError) as caught:
        S3Source(url)
    assert "secret" not in str(caught.value)


def test_a_source_with_nothing_in_it_is_an_error(start: Callable[..., StrictS3]) -> None:
    """Most likely a slip of the pen; nothing that matches a pattern is none."""
    server = start()
    with pytest.raises(UsageError, match="docs"):
        names(f"s3://{BUCKET}/docs")
    lay(server, "docs/a.md")
    assert names(f"s3://{BUCKET}/docs", include=["*.txt"]) == []


# -- under which version ---------------------------------------------------------


def listed(url: str = f"s3://{BUCKET}/docs") -> Found:
    [found] = S3Source(url).list()
    assert isinstance(found, Found)
    return found


def test_the_etag_is_the_version_where_there_is_nothing_better(
    start: Callable[..., StrictS3],
) -> None:
    """Told by the listing alone."""
    server = start()
    stored = lay(server, "docs/a.md")
    found = listed()
    assert f"etag:{stored.etag.strip(chr(34))}" == found.source_version
    assert found.size == 4
    assert (found.source_version, 4) == S3Reader().fingerprint(found.locator)


def test_a_bucket_that_keeps_versions_pins_the_one_that_was_listed(
    start: Callable[..., StrictS3],
) -> None:
    """What is put there later is another document; this one can still be read."""
    server = start(versioned=True)
    stored = lay(server, "docs/a.md", b"first")
    found = listed()
    assert f"version:{stored.version}" == found.source_version
    assert (found.source_version, 5) == S3Reader().fingerprint(found.locator)
    lay(server, "docs/a.md", b"second")
    server.state.delete(BUCKET, "docs/a.md")
    assert found.source_version is not None
    assert S3Reader().read(found.locator, found.source_version, ENOUGH) == b"first"


def test_old_versions_and_deleted_objects_are_not_listed(start: Callable[..., StrictS3]) -> None:
    """Whether or not they fill pages."""
    server = start(versioned=True, page=3)
    for key in ("docs/a.md", "docs/b.md", "docs/c.md"):
        for number in range(5):
            lay(server, key, f"{key} {number}".encode())
    server.state.delete(BUCKET, "docs/b.md")
    found = [each for each in S3Source(f"s3://{BUCKET}/docs").list() if isinstance(each, Found)]
    assert [f"s3://{BUCKET}/docs/{name}.md" for name in "ac"] == [f.source_id for f in found]
    reader = S3Reader()
    for each in found:
        assert each.source_version is not None
        assert reader.read(each.locator, each.source_version, ENOUGH).endswith(b"4")


def test_an_object_from_before_the_bucket_kept_versions_is_not_pinned(
    start: Callable[..., StrictS3],
) -> None:
    """Its version is called "null", and so would be the next one's."""
    server = start()
    stored = lay(server, "docs/a.md")
    server.state.versioned = True
    found = listed()
    assert "versionId" not in found.locator
    assert f"etag:{stored.etag.strip(chr(34))}" == found.source_version


@pytest.mark.parametrize("versioned", [True, False])
def test_a_digest_of_the_stores_own_is_the_strongest_version(
    start: Callable[..., StrictS3], versioned: bool
) -> None:
    """The listing tells that there is one; what it is takes a request, left to the reader."""
    server = start(versioned=versioned)
    lay(server, "docs/a.md", b"text", digest=True)
    found = listed()
    assert found.source_version is None
    assert server.count("HeadObject") == 0
    assert (sha256(b"text"), 4) == S3Reader().fingerprint(found.locator)
    assert ("versionId" in found.locator) == versioned


def test_a_digest_of_parts_is_no_digest_of_the_document(start: Callable[..., StrictS3]) -> None:
    """It depends on how the parts were cut."""
    server = start(min_part=1)
    s3 = boto3.session.Session().client("s3")
    upload = s3.create_multipart_upload(Bucket=BUCKET, Key="docs/a.md", ChecksumAlgorithm="SHA256")
    part = s3.upload_part(
        Bucket=BUCKET, Key="docs/a.md", UploadId=upload["UploadId"], PartNumber=1, Body=b"text",
        ChecksumAlgorithm="SHA256",
    )  # fmt: skip
    s3.complete_multipart_upload(
        Bucket=BUCKET,
        Key="docs/a.md",
        UploadId=upload["UploadId"],
        MultipartUpload={
            "Parts": [
                {"PartNumber": 1, "ETag": part["ETag"], "ChecksumSHA256": part["ChecksumSHA256"]}
            ]
        },
    )
    found = listed()
    assert found.source_version is not None
    assert found.source_version.startswith("etag:")
    assert (found.source_version, 4) == S3Reader().fingerprint(found.locator)
    assert server.count("HeadObject") == 1


def test_moto_lists_and_reads_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server, with and without versions."""
    moto_bucket(monkeypatch)
    s3, reader = boto3.session.Session().client("s3"), S3Reader()
    for versions in (False, True):
        if versions:
            s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        for number in range(3):
            s3.put_object(Bucket=BUCKET, Key=f"docs/{versions}/{number}.md", Body=b"text")
        found = list(S3Source(f"s3://{BUCKET}/docs/{versions}").list())
        assert len(found) == 3
        for each in found:
            assert isinstance(each, Found)
            assert each.source_version is not None
            assert each.source_version.startswith("version:" if versions else "etag:")
            assert reader.read(each.locator, each.source_version, ENOUGH) == b"text"


# -- reading again ---------------------------------------------------------------


def cause(read: Callable[[], object]) -> tuple[str, bool]:
    with pytest.raises(DocumentError) as caught:
        read()
    return caught.value.cause, caught.value.final


@pytest.mark.parametrize("digest", [True, False])
def test_a_document_that_changed_is_never_read_for_the_old_one(
    start: Callable[..., StrictS3], digest: bool
) -> None:
    """By the store's condition, or by the bytes' digest."""
    server = start()
    lay(server, "docs/a.md", b"first", digest=digest)
    found, reader = listed(), S3Reader()
    version = found.source_version or reader.fingerprint(found.locator)[0]
    assert reader.read(found.locator, version, ENOUGH) == b"first"
    lay(server, "docs/a.md", b"other", digest=digest)
    assert cause(lambda: reader.read(found.locator, version, ENOUGH)) == (
        "source_changed",
        True,
    )
    server.state.delete(BUCKET, "docs/a.md")
    assert cause(lambda: reader.read(found.locator, version, ENOUGH)) == (
        "source_missing",
        True,
    )


def test_a_document_above_the_limit_is_not_loaded(start: Callable[..., StrictS3]) -> None:
    """Its size is known before its bytes."""
    server = start()
    lay(server, "docs/a.md", b"x" * 1001)
    found = listed()
    assert found.source_version is not None
    version = found.source_version
    assert cause(lambda: S3Reader().read(found.locator, version, 1000)) == ("too_large", True)
    assert len(S3Reader().read(found.locator, version, 1001)) == 1001


@pytest.mark.parametrize("fault", [Fault.CUT_BODY, Fault.CUT_BEFORE, Fault.FLIPPED])
def test_a_damaged_read_is_read_again(start: Callable[..., StrictS3], fault: Fault) -> None:
    """It condemns no document."""
    server = start()
    lay(server, "docs/a.md", b"x" * 100_000, digest=True)
    server.inject("GetObject", fault)
    version = sha256(b"x" * 100_000)
    assert len(S3Reader().read(listed().locator, version, ENOUGH)) == 100_000


def test_reads_that_differ_say_nothing_of_the_document(start: Callable[..., StrictS3]) -> None:
    """The wire is bad, so the document goes back uncharged."""
    server = start()
    lay(server, "docs/a.md", b"x" * 100_000, digest=True)
    server.inject("GetObject", Fault.FLIPPED, Fault.FLIPPED)
    with pytest.raises(SourceUnavailable):
        S3Reader().read(listed().locator, sha256(b"x" * 100_000), ENOUGH)


def test_a_store_without_an_answer_says_nothing_of_the_document(
    start: Callable[..., StrictS3],
) -> None:
    """Neither a body that is cut off each time, nor nobody at the endpoint."""
    server = start()
    lay(server, "docs/a.md", b"x" * 1000)
    found = listed()
    assert found.source_version is not None
    server.inject("GetObject", *[Fault.CUT_BODY] * 9)
    with pytest.raises(SourceUnavailable):
        S3Reader(clock=ManualClock()).read(found.locator, found.source_version, ENOUGH)
    assert server.count("GetObject") == 4


def test_a_missing_bucket_condemns_no_document(start: Callable[..., StrictS3]) -> None:
    """An endpoint of another site would dead-letter the whole run; a SOURCE is told at once."""
    start()
    reader = S3Reader()
    for ask in (
        lambda: reader.read("s3://nowhere/a.md", "etag:1", ENOUGH),
        lambda: reader.open("s3://nowhere/a.csv"),
    ):
        with pytest.raises(SourceUnavailable, match="NoSuchBucket"):
            ask()
    with pytest.raises(UsageError, match="NoSuchBucket"):
        names("s3://nowhere/docs")


def test_a_right_that_is_missing_is_named(start: Callable[..., StrictS3]) -> None:
    """Of the listing it ends the command; of one document it ends that document."""
    server = start(may_list=False)
    lay(server, "docs/a.md")
    with pytest.raises(AccessDenied) as caught:
        names(f"s3://{BUCKET}/docs")
    assert "s3:ListBucket" in str(caught.value.hint)
    locator = to_s3_locator(BUCKET, "docs/absent.md", None)
    assert cause(lambda: S3Reader().read(locator, "etag:1", ENOUGH)) == ("source_unreadable", False)


@pytest.mark.parametrize("refreshed", [True, False])
def test_a_document_whose_key_is_disabled_is_charged_alone(
    start: Callable[..., StrictS3], monkeypatch: pytest.MonkeyPatch, refreshed: bool
) -> None:
    """To a HEAD it looks like credentials that expired, which an instance's role would refresh."""
    if refreshed:
        monkeypatch.setattr(client, "RefreshableCredentials", object)
    server = start()
    lay(server, "docs/a.md", digest=True)
    found = listed()
    server.sealed.add("docs/a.md")
    reader = S3Reader(clock=ManualClock())
    for ask in (
        lambda: reader.fingerprint(found.locator),
        lambda: reader.open(found.locator),
        lambda: reader.read(found.locator, sha256(b"text"), ENOUGH),
    ):
        assert cause(ask) == ("source_unreadable", False)


@pytest.mark.parametrize(
    ("code", "message", "charged"),
    [
        ("KMS.KMSInvalidStateException", "arn:aws:kms:… is pending deletion.", True),
        ("InvalidRequest", "The object was stored using a form of Server Side Encryption.", True),
        ("InvalidRequest", "The authorization mechanism is not supported.", False),
        ("AuthorizationHeaderMalformed", "The region 'us-east-1' is wrong.", False),
    ],
)
def test_only_what_is_said_of_the_object_is_charged(code: str, message: str, charged: bool) -> None:
    """A request that the server does not take is no document's fault."""
    error = of_document(Refusal("GetObject", 400, code, message), "s3://bucket/a")
    assert isinstance(error, DocumentError) == charged


def test_credentials_that_ended_condemn_no_document(
    start: Callable[..., StrictS3], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """New ones in their place are taken up; without, the command ends and names none."""
    server = start()
    lay(server, "docs/a.md")
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    text = "[default]\naws_access_key_id = {}\naws_secret_access_key = very-secret\n"
    file.write_text(text.format("old"))
    found, reader = listed(), S3Reader()
    assert found.source_version is not None
    assert reader.read(found.locator, found.source_version, ENOUGH) == b"text"
    server.expired.add("old")
    with pytest.raises(AccessDenied, match="ExpiredToken") as caught:
        reader.read(found.locator, found.source_version, ENOUGH)
    assert "very-secret" not in "".join(traceback.format_exception(caught.value))
    file.write_text(text.format("new"))
    assert reader.read(found.locator, found.source_version, ENOUGH) == b"text"


def test_wrong_credentials_condemn_no_document(
    start: Callable[..., StrictS3], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a HEAD they look like a right that is missing, and each row of a table begins with one."""
    server = start()
    lay(server, "docs/a.csv", digest=True)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    locator, reader = to_s3_locator(BUCKET, "docs/a.csv", None), S3Reader()
    for ask in (
        lambda: reader.fingerprint(locator),
        lambda: reader.open(locator),
        lambda: reader.read(locator, sha256(b"text"), ENOUGH),
    ):
        with pytest.raises(AccessDenied, match="SignatureDoesNotMatch"):
            ask()


def test_no_credentials_at_all_are_access_denied(
    start: Callable[..., StrictS3], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the way to set them; nothing is sent."""
    server = start()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AccessDenied) as caught:
        names(f"s3://{BUCKET}/docs")
    assert "AWS_PROFILE" in str(caught.value.hint)
    assert server.log == []


def test_a_broken_endpoint_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is what is wrong."""
    point_sdk_at("not a url", monkeypatch)
    with pytest.raises(UsageError, match="endpoint"):
        names(f"s3://{BUCKET}/docs")
