"""Sources over their real transports: a socket that answers well, badly, slowly or not at all, and a file."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from demo import H200, TUNED, snapshot

from tunedex.client.cache import Stamped
from tunedex.client.settings import SETTINGS
from tunedex.client.sources import FileSource, HttpSource
from tunedex.core.canonical import canonical_json
from tunedex.core.errors import BadInput, CannotRun

DOCUMENT = canonical_json(snapshot().to_dict()).encode()


@dataclass
class Script:
    """What a server answers, and what it was asked."""

    status: int = 200
    body: bytes = DOCUMENT
    headers: dict[str, str] = field(default_factory=lambda: {"ETag": '"3"'})
    drip_s: float = 0.0
    asked: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)


@contextmanager
def serving(script: Script) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            script.asked.append((self.path, {k.lower(): v for k, v in self.headers.items()}, sent))
            self.send_response(script.status)
            for name, value in script.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(script.body)))
            self.end_headers()
            try:
                for start in range(0, len(script.body), 100 if script.drip_s else len(script.body) or 1):
                    self.wfile.write(script.body[start : start + (100 if script.drip_s else len(script.body))])
                    self.wfile.flush()
                    time.sleep(script.drip_s)
            except OSError:
                pass  # the client has given up

        do_GET = do_POST = _answer  # noqa: N815 - the names that the standard library calls

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def fetch(url: str, etag: str = "", **options: float) -> Stamped | None:
    return HttpSource(url, **options).fetch(H200.key, "stable", None, etag)


def test_a_snapshot_comes_with_its_tag() -> None:
    script = Script()
    with serving(script) as url:
        assert fetch(url + "/") == Stamped(snapshot(), '"3"')
        HttpSource(url).fetch(H200.key, "candidate", 7, "")
    assert script.asked[0][0] == f"/v1/snapshot?device={H200.key}&channel=stable"
    assert script.asked[1][0] == f"/v1/snapshot?device={H200.key}&channel=candidate&revision=7"
    assert "if-none-match" not in script.asked[0][1]


def test_a_packed_snapshot_is_unpacked() -> None:
    with serving(Script(body=gzip.compress(DOCUMENT), headers={"Content-Encoding": "gzip"})) as url:
        assert fetch(url) == Stamped(snapshot(), "")


def test_what_is_held_already_is_not_sent_again() -> None:
    script = Script(status=304, body=b"")
    with serving(script) as url:
        assert fetch(url, '"3"') is None
    assert script.asked[0][1]["if-none-match"] == '"3"'


PROBLEM = json.dumps({"status": 404, "detail": "revision 9 is not published"}).encode()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (Script(status=404, body=PROBLEM), "answers 404: revision 9 is not published"),
        (Script(status=500, body=b"<html>"), "answers 500$"),
        (Script(status=503, body=b"[" * 50_000), "answers 503$"),
        (Script(status=302, body=b"", headers={"Location": "http://127.0.0.1:1/"}), "answers 302"),
        (Script(status=304, body=b""), "answers 304"),
        (Script(headers={"Content-Encoding": "gzip"}), "does not answer"),
    ],
)
def test_an_answer_that_is_no_snapshot_is_an_error_of_one_line(script: Script, words: str) -> None:
    with serving(script) as url, pytest.raises(CannotRun, match=words) as caught:
        fetch(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        DOCUMENT[:-1],
        DOCUMENT + b"}",
        b"null",
        b"[]",
        b'"x"',
        b"\0" * 100,
        b"\xff" * 100,
        b"[" * 100_000,
        b'{"format":"tunedex-snapshot","version":99}',
        b'{"format":"tunedex-snapshot","version":1}',
    ],
    ids=lambda body: repr(bytes(body[:12])),
)
def test_a_body_that_is_no_snapshot_is_refused(body: bytes) -> None:
    with serving(Script(body=body)) as url, pytest.raises(BadInput):
        fetch(url)


def test_a_body_without_end_is_not_read_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunedex.client.sources.SETTINGS", replace(SETTINGS, snapshot_bytes=1000))
    with serving(Script()) as url, pytest.raises(CannotRun, match="sends more than 1000 bytes"):
        fetch(url)


def test_a_body_that_drips_is_given_up() -> None:
    with serving(Script(drip_s=0.5)) as url, pytest.raises(CannotRun, match="does not end its answer within"):
        fetch(url, wait_s=3.0)


def test_nobody_there_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: a connection is refused
        with pytest.raises(CannotRun, match="does not answer"):
            fetch(f"http://127.0.0.1:{taken.getsockname()[1]}")


def test_a_name_that_nobody_has_is_an_error() -> None:
    with pytest.raises(CannotRun, match="does not answer"):
        fetch("http://nowhere.invalid", wait_s=1.0)


@pytest.mark.parametrize("url", ["http://", "http:///v1", "http://[::1", "http://h:99999", "http://h:x", "http://a b"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="is not an address"):
        HttpSource(url)


def test_misses_are_posted() -> None:
    script = Script(status=202, body=b"{}")
    with serving(script) as url:
        assert HttpSource(url).report(H200.key, {TUNED: 5}) is True
    path, headers, sent = script.asked[0]
    assert (path, headers["content-type"]) == ("/v1/misses", "application/json")
    assert json.loads(sent) == {"device": H200.key, "misses": [{**TUNED.to_dict(), "count": 5}]}


@pytest.mark.parametrize(("status", "again"), [(403, False), (422, False), (429, True), (503, True)])
def test_misses_that_are_refused_for_good_are_dropped_and_others_kept(status: int, again: bool) -> None:
    with serving(Script(status=status, body=b"{}")) as url:
        if again:
            with pytest.raises(CannotRun, match=f"answers {status}"):
                HttpSource(url).report(H200.key, {TUNED: 5})
        else:
            assert HttpSource(url).report(H200.key, {TUNED: 5}) is False


def test_a_password_is_not_shown() -> None:
    assert HttpSource("http://user:secret@host").name == "http://host"
    for wrong in ("http://user:secret@host:99999", "http://user:secret@[::1"):
        with pytest.raises(BadInput) as caught:
            HttpSource(wrong)
        assert "secret" not in str(caught.value)


def test_a_file_is_read_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "h200.json"
    path.write_bytes(DOCUMENT)
    source = FileSource(path)
    first = source.fetch(H200.key, "stable", None, "")
    assert first is not None
    assert first.snapshot == snapshot()
    assert source.fetch(H200.key, "stable", None, first.etag) is None
    path.write_bytes(canonical_json(snapshot(4).to_dict()).encode())
    second = source.fetch(H200.key, "stable", None, first.etag)
    assert second is not None
    assert second.snapshot.revision == 4
    assert source.report(H200.key, {TUNED: 1}) is False


@pytest.mark.parametrize(
    "make",
    [
        lambda path: None,
        lambda path: path.mkdir(),
        lambda path: path.write_bytes(b"{"),
        lambda path: path.write_bytes(b"\xff\xff"),
        lambda path: path.symlink_to(path.parent / "nothing"),
    ],
    ids=["absent", "folder", "brace", "rubbish", "dangling"],
)
def test_a_file_that_is_no_snapshot_is_an_error(make: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    make(path)
    with pytest.raises((CannotRun, BadInput)):
        FileSource(path).fetch(H200.key, "stable", None, "")
