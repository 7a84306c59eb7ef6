"""Downloads: the hub's own client against a hub on this machine."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.model_folders import write_model

pytest.importorskip("huggingface_hub")

COMMIT = "c0ffee" + "0" * 34
REPOSITORY = "sentence-transformers/encoder"


class Hub(http.server.ThreadingHTTPServer):
    """Serves one repository at one commit, as the hub's API does."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        files = [str(f.relative_to(self.server.folder)) for f in self.server.folder.rglob("*.*")]
        api, _, revision = self.path.partition(f"/api/models/{REPOSITORY}/revision/")
        _, _, name = self.path.partition(f"/{REPOSITORY}/resolve/{COMMIT}/")
        if not api and revision in ("main", "v2", COMMIT):
            siblings = [{"rfilename": file} for file in files]
            about = {"id": REPOSITORY, "sha": COMMIT, "private": False, "siblings": siblings}
            self._send(json.dumps(about).encode(), "application/json")
        elif self.path.startswith(f"/api/models/{REPOSITORY}/tree/{COMMIT}"):
            self._send(
                json.dumps([self._entry(file) for file in files]).encode(), "application/json"
            )
        elif name in files:
            self.server.asked.append(name)
            self._send((self.server.folder / name).read_bytes(), "application/octet-stream")
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _entry(self, file: str) -> dict[str, object]:
        data = (self.server.folder / file).read_bytes()
        return {
            "type": "file",
            "path": file,
            "size": len(data),
            "oid": hashlib.sha1(data).hexdigest(),
        }

    def _send(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    folder = write_model(
        tmp_path / "published",
        pytorch_model__bin=b"\x80\x04",
        modeling_custom__py="raise SystemExit",
        training_args__pt=b"x",
        README__md="hello",
        merges__txt="a b",
    )
    (folder / "onnx").mkdir()
    (folder / "onnx" / "config.json").write_text("{}")
    server = Hub(folder)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def find(
    hub: Hub, tmp_path: Path, arguments: str, *, first: str = "", **environment: str
) -> dict[str, str]:
    """What `find_model(arguments)` finds in a process of its own, or its error."""
    program = (
        f"import json\n{first}\n"
        "from batchq.errors import BatchqError\n"
        "from batchq.inference.weights import find_model\n"
        "try:\n"
        f"    found = find_model({arguments})\n"
        "    print(json.dumps({'place': found.place, 'path': str(found.path)}))\n"
        "except BatchqError as error:\n"
        "    print(json.dumps({'error': error.message}))\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        env={
            **kept,
            "HF_ENDPOINT": hub.url,
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_a_model_is_fetched_once_and_without_what_runs_code(hub: Hub, tmp_path: Path) -> None:
    """Weights, tokenizer and configuration alone; the second time from the cache."""
    found = find(hub, tmp_path, "'encoder'")
    assert found["place"] == "hub"
    wanted = {"config.json", "model.safetensors", "tokenizer.json", "merges.txt"}
    assert wanted == set(hub.asked)
    assert wanted == {path.name for path in Path(found["path"]).iterdir()}
    hub.asked.clear()
    again = find(hub, tmp_path, "'encoder'", HF_HUB_OFFLINE="1")
    assert again == {"place": "cache", "path": found["path"]}
    assert hub.asked == []


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_download_that_broke_off_is_finished(hub: Hub, tmp_path: Path, name: str) -> None:
    """A snapshot without weights or tokenizer is not taken for the model."""
    found = find(hub, tmp_path, "'encoder'")
    (Path(found["path"]) / name).unlink()
    offline = find(hub, tmp_path, "'encoder'", HF_HUB_OFFLINE="1")
    assert "incomplete" in offline["error"]
    assert find(hub, tmp_path, "'encoder'") == found


def test_a_pinned_commit_is_fetched(hub: Hub, tmp_path: Path) -> None:
    """And lies in the cache under its own name."""
    found = find(hub, tmp_path, f"'encoder', revision='{COMMIT}'")
    assert found["place"] == "hub"
    assert found["path"].endswith(COMMIT)


def test_a_model_that_the_hub_does_not_have_says_so(hub: Hub, tmp_path: Path) -> None:
    """With each name that was asked for and why, and no traceback."""
    error = find(hub, tmp_path, "'absent'")["error"]
    assert "hub sentence-transformers/absent: RepositoryNotFoundError: 404" in error
    assert "hub absent: RepositoryNotFoundError: 404" in error


def test_offline_means_offline(hub: Hub, tmp_path: Path) -> None:
    """HF_HUB_OFFLINE keeps every request back."""
    error = find(hub, tmp_path, "'encoder'", HF_HUB_OFFLINE="1")["error"]
    assert "HF_HUB_OFFLINE is set" in error
    assert hub.asked == []


def test_a_model_is_not_fetched_where_it_does_not_fit(hub: Hub, tmp_path: Path) -> None:
    """The disk is looked at before the first byte comes: a full one would stop others too."""
    full = "import batchq.inference.weights as w; w.free_bytes = lambda folder: 5"
    error = find(hub, tmp_path, "'encoder'", first=full)["error"]
    assert "MB are needed" in error
    assert "0.0 MB are free" in error
    assert set(hub.asked) == set() or not list((tmp_path / "cache").rglob("*.safetensors"))
