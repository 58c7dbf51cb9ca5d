"""`tunedex.connect` and `tunedex.lookup`: what names which source, and a whole way through a database and a server."""

from __future__ import annotations

import logging
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from demo import BEST, DEMO, H200, SECOND, TUNED, row, snapshot

import tunedex
from tunedex.api import create_app
from tunedex.client import device as client_device
from tunedex.client.connection import source_of
from tunedex.client.sources import HttpSource
from tunedex.core import host
from tunedex.core.canonical import canonical_json
from tunedex.core.device import Device
from tunedex.core.errors import BadInput, CannotRun
from tunedex.core.folders import default_database
from tunedex.core.snapshot import Match
from tunedex.db import embedded_path, open_store


class Opened:
    """Stands for a database that a test does not open."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.file = Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else None


def kind_of(source: Any) -> tuple[str, str]:
    found = source_of(source, Opened)  # type: ignore[arg-type]
    return type(found).__name__, str(getattr(found, "url", getattr(found, "name", "")))


def publish(path: Path, *configs: Any, device: Device = H200) -> int:
    """A database whose newest revision holds ``configs`` for the tuned problem of the demo."""
    with open_store(str(path)) as store:
        store.register_device(device)
        store.register_signatures([DEMO])
        rows = [row(rank, config, 10.0 + rank) for rank, config in enumerate(configs)]
        return store.publish(device.key, {TUNED: rows}, sweep=None)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.db"
    publish(path, BEST, SECOND)
    return path


@pytest.fixture
def server(database: Path) -> Iterator[str]:
    """The address of a real server over ``database``."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    running = uvicorn.Server(uvicorn.Config(create_app(str(database)), log_config=None, timeout_graceful_shutdown=2))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    while not running.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    running.should_exit = True
    thread.join()
    listener.close()


def test_what_a_source_is_called(tmp_path: Path) -> None:
    snapshot_file, database, empty = tmp_path / "s.json", tmp_path / "odd.name", tmp_path / "new.db"
    snapshot_file.write_text("{}")
    with sqlite3.connect(database) as made:
        made.execute("create table t (c)")
    made.close()
    empty.touch()
    assert kind_of("http://host:8421") == ("HttpSource", "http://host:8421")
    assert kind_of("https://host/") == ("HttpSource", "https://host")
    assert kind_of(f"sqlite:///{database}") == ("Opened", f"sqlite:///{database}")
    assert kind_of("postgresql://u@h/n") == ("Opened", "postgresql://u@h/n")
    assert kind_of(snapshot_file) == ("FileSource", str(snapshot_file))
    assert kind_of(str(database)) == ("Opened", str(database))
    assert kind_of(empty) == ("Opened", str(empty))


@pytest.mark.parametrize("source", ["", "  ", "ftp://x", "://", "http://", "http://h:99999", "a\0b", 3, [], b"x"])
def test_what_can_be_no_source_is_refused(source: Any) -> None:
    with pytest.raises(BadInput):
        tunedex.connect(source)


@pytest.mark.parametrize(
    "options", [{"channel": "beta"}, {"revision": -1}, {"revision": "x"}, {"device": "h200"}, {"device": 3}]
)
def test_wrong_arguments_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        tunedex.connect(**options)


def test_settings_name_the_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert kind_of(None) == ("BuiltinSource", "no source")
    own = default_database()
    own.parent.mkdir(parents=True)
    own.touch()
    assert kind_of(None) == ("Opened", str(own))
    monkeypatch.setenv("TUNEDEX_DB", "sqlite:///x.db")
    assert kind_of(None) == ("Opened", "sqlite:///x.db")
    monkeypatch.setenv("TUNEDEX_URL", "http://host")
    assert kind_of(None) == ("HttpSource", "http://host")


def test_the_default_database_is_the_databases_own_default() -> None:
    assert default_database() == embedded_path(None)


def test_without_a_source_the_built_in_defaults_answer() -> None:
    answer = tunedex.lookup("softmax", 1024, 4096, dtype="float32", device="cpu")
    assert answer.match is Match.DEFAULT
    assert answer.config is not None
    assert answer.config.implementation == "numba"
    assert (answer.revision, tunedex.default_client("cpu").status().origin) == (0, "built-in")


def test_a_database_answers(database: Path) -> None:
    client = tunedex.connect(database, device=H200.key)
    assert client.status().origin == "database"
    answer = tunedex.lookup("demo", 4096, 512, dtype="bf16")
    assert (answer.config, answer.match, answer.revision) == (BEST, Match.EXACT, client.revision)
    revision = publish(database, SECOND, BEST)
    assert client.refresh() is True
    assert tunedex.lookup("demo", 4096, 512, dtype="bf16").config == SECOND
    assert client.refresh() is False
    pinned = tunedex.connect(database, device=H200.key, revision=revision - 1)
    assert pinned.lookup("demo", 4096, 512, dtype="bf16").config == BEST


def test_misses_reach_the_database(database: Path) -> None:
    with tunedex.connect(database, device=H200.key) as client:
        for rows in (7, 8, 7):
            client.lookup("demo", rows, 512, dtype="bf16")
    with open_store(str(database)) as store:
        assert {miss.problem.dims["rows"] for miss in store.list_misses().items} == {7, 8}


def test_a_server_answers_and_takes_misses(server: str, database: Path) -> None:
    client = tunedex.connect(server, device=H200.key)
    assert client.status().origin == "server"
    assert tunedex.lookup("demo", 4096, 512, dtype="bf16").config == BEST
    assert client.refresh() is False
    tunedex.lookup("demo", 7, 512, dtype="bf16")
    assert client.report_misses() == 1
    publish(database, SECOND, BEST)
    deadline = time.monotonic() + 60
    while not client.refresh():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert tunedex.lookup("demo", 4096, 512, dtype="bf16").config == SECOND


def test_the_same_question_gets_the_same_answer_from_server_database_and_file(
    server: str, database: Path, tmp_path: Path
) -> None:
    online = tunedex.connect(server, device=H200.key)
    path = tmp_path / "h200.json"
    path.write_text(canonical_json(online.snapshot.to_dict()))
    clients = [online, tunedex.connect(database, device=H200.key), tunedex.connect(path, device=H200.key)]
    for dims, dtype in (((4096, 512), "bfloat16"), ((7, 512), "float32"), ((0, 1), "bfloat16"), ((1,), "bfloat16")):
        answers = [client.lookup("demo", *dims, dtype=dtype).to_dict() for client in clients]
        assert answers[0] == answers[1] == answers[2]


def test_the_last_snapshot_answers_while_the_server_is_away(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tunedex.connect(server, device=H200.key).close()
    monkeypatch.setattr(HttpSource, "_call", _away)
    client = tunedex.connect(server, device=H200.key)
    status = client.status()
    assert (status.origin, status.reason) == ("cache", "away")
    assert client.lookup("demo", 4096, 512, dtype="bf16").config == BEST
    assert tunedex.connect(server, device="cpu").status().origin == "built-in"


def test_a_pinned_revision_on_disk_needs_no_server(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    revision = tunedex.connect(server, device=H200.key).revision
    monkeypatch.setenv("TUNEDEX_PIN", str(revision))
    tunedex.connect(server, device=H200.key)
    monkeypatch.setattr(HttpSource, "_call", _away)
    client = tunedex.connect(server, device=H200.key)
    assert (client.revision, client.status().reason) == (revision, "away")
    assert client.lookup("demo", 4096, 512, dtype="bf16").config == BEST


@pytest.mark.parametrize("pin", [None, 1])
@pytest.mark.parametrize("served", [True, False])
def test_a_database_made_anew_is_asked_and_not_taken_for_the_one_before(
    served: bool, pin: int | None, database: Path, request: pytest.FixtureRequest
) -> None:
    source = request.getfixturevalue("server") if served else database
    client = tunedex.connect(source, device=H200.key, revision=pin)
    assert client.lookup("demo", 4096, 512, dtype="bf16").config == BEST
    anew = database.with_name("anew.db")
    assert publish(anew, SECOND, BEST) == client.revision == 1
    anew.replace(database)
    for left in database.parent.glob("fleet.db-*"):
        left.unlink()
    deadline = time.monotonic() + 60
    while not client.refresh():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for asked in (client, tunedex.connect(source, device=H200.key, revision=pin)):
        assert (asked.lookup("demo", 4096, 512, dtype="bf16").config, asked.revision) == (SECOND, 1)


def _away(*_: object, **__: object) -> Any:
    raise CannotRun("away")


def test_a_server_that_is_down_costs_two_seconds_at_most_and_no_error() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # takes connections and never answers
        client = tunedex.connect(f"http://127.0.0.1:{silent.getsockname()[1]}", device=H200.key)
    assert client.status().origin == "built-in"
    assert client.status().reason
    assert client.lookup("softmax", 4096, 4096, dtype="bf16").match is Match.DEFAULT


@pytest.mark.parametrize("content", [b"", b"{", b"\xff" * 100, b"SQLite format 3\0" + b"\xff" * 100])
def test_a_damaged_file_is_no_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    path.write_bytes(content)
    client = tunedex.connect(path, device=H200.key)
    assert client.status().origin == "built-in"
    assert client.status().reason
    answer = client.lookup("softmax", 4096, 4096, dtype="bf16")
    assert answer.config is not None
    assert client.status().reason in answer.reason


@pytest.mark.parametrize("name", ["nope", "absent.db", "absent/snapshot.json", ".", "~nobody_at_all/x.db"])
@pytest.mark.parametrize("scheme", ["", "sqlite:///"])
def test_a_file_that_is_not_there_is_refused_at_once_and_not_made(scheme: str, name: str, tmp_path: Path) -> None:
    source = name if name.startswith("~") else str(tmp_path / name)
    with pytest.raises(BadInput) as caught:
        tunedex.connect(scheme + source, device=H200.key)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.glob("absent*")) == []
    assert tunedex.lookup("softmax", 4, 4, dtype="float32", device="cpu").config is not None


def test_a_file_that_goes_away_is_no_error(database: Path) -> None:
    client = tunedex.connect(database, device=H200.key)
    database.unlink()
    assert client.refresh() is False
    assert client.lookup("demo", 4096, 512, dtype="bf16").config == BEST
    assert client.status().reason


def test_a_database_that_a_setting_names_and_no_sweep_has_made_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "later.db"
    monkeypatch.setenv("TUNEDEX_DB", str(path))
    client = tunedex.connect(device=H200.key)
    assert client.status().reason
    assert not path.exists()
    publish(path, BEST)
    assert client.refresh() is True
    assert client.lookup("demo", 4096, 512, dtype="bf16").config == BEST


@pytest.mark.parametrize(
    ("name", "value"),
    [("TUNEDEX_URL", "ftp://x"), ("TUNEDEX_URL", "nope"), ("TUNEDEX_DB", "mysql://x"), ("TUNEDEX_PIN", "newest")],
)
def test_wrong_settings_break_nothing(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, value)
    client = tunedex.connect()
    assert name in client.status().reason
    for _ in range(2):
        assert tunedex.lookup("softmax", 4, 4, dtype="float32", device="cpu").config is not None
    assert name in tunedex.default_client("cpu").status().reason
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


def test_a_wrong_pin_is_not_followed(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEDEX_PIN", "newest")
    client = tunedex.connect(database, device=H200.key)
    assert client.lookup("demo", 4096, 512, dtype="bf16").config == BEST
    assert client.status().origin == "database"
    assert "TUNEDEX_PIN=newest is not a whole number" in client.status().reason
    revision = publish(database, SECOND, BEST)
    assert client.refresh() is True
    assert client.revision == revision
    assert "TUNEDEX_PIN" in client.status().reason


@pytest.mark.parametrize("device", ["h200", "", 3, [], {}, b"x", object()])
def test_a_wrong_device_breaks_no_lookup(device: Any) -> None:
    answer = tunedex.lookup("softmax", 4, 4, dtype="float32", device=device)
    assert (answer.config, answer.match) == (None, Match.DEFAULT)
    assert "device" in answer.reason


def test_many_wrong_devices_are_not_kept() -> None:
    for number in range(200):
        tunedex.lookup("softmax", 4, 4, dtype="float32", device=f"wrong {number}")
    assert len(tunedex._clients) <= tunedex._MOST_CLIENTS


def test_each_device_has_answers_of_its_own(database: Path) -> None:
    other = Device.from_key("nvidia-sm80-108sm-l2_40m-smem_163k-mem_40g")
    publish(database, SECOND, device=other)
    tunedex.connect(database, device=H200.key)
    assert tunedex.lookup("demo", 4096, 512, dtype="bf16").config == BEST
    assert tunedex.lookup("demo", 4096, 512, dtype="bf16", device=other).config == SECOND
    assert tunedex.lookup("demo", 4096, 512, dtype="bf16", device=other.key).config == SECOND
    assert tunedex.lookup("demo", 4096, 512, dtype="bf16", device="cpu").match is Match.DEFAULT


def test_a_device_has_one_client_by_whichever_name() -> None:
    default = tunedex.default_client()
    assert default.device == host.cpu()
    assert all(tunedex.default_client(each) is default for each in ("cpu", host.cpu().key, host.cpu()))
    assert tunedex.default_client(H200) is not default


def test_the_process_refreshes_and_tells_its_status(database: Path) -> None:
    other = Device.from_key("nvidia-sm80-108sm-l2_40m-smem_163k-mem_40g")
    tunedex.connect(database, device=H200.key)
    tunedex.lookup("demo", 4096, 512, dtype="bf16", device=other)
    assert tunedex.refresh() is False
    assert (tunedex.status().device, tunedex.status(other).device) == (H200.key, other.key)
    revision = publish(database, SECOND, device=other)  # of a device that is not the default one
    assert tunedex.refresh(wait_s=60.0) is True
    assert tunedex.status(other).revision == revision
    assert tunedex.lookup("demo", 4096, 512, dtype="bf16", device=other).config == SECOND
    assert tunedex.lookup("demo", 4096, 512, dtype="bf16").config == BEST
    database.unlink()
    assert tunedex.refresh() is False
    assert tunedex.status().reason


def test_without_a_source_a_refresh_changes_nothing() -> None:
    assert tunedex.refresh() is False
    assert (tunedex.status().origin, tunedex.status().revision) == ("built-in", 0)


def test_a_snapshot_file_of_another_device_is_not_served(tmp_path: Path) -> None:
    path = tmp_path / "h200.json"
    path.write_text(canonical_json(snapshot().to_dict()))
    answer = tunedex.connect(path, device="cpu").lookup("demo", 4096, 512, dtype="bf16")
    assert (answer.config, answer.match) == (None, Match.DEFAULT)


def test_the_device_is_this_process_own() -> None:
    assert tunedex.connect().device.key == tunedex.default_client().device.key
    assert tunedex.default_client("cpu").device == host.cpu()


def test_a_driver_that_does_not_answer_breaks_no_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(client_device, "_ask_child", lambda: {"error": "cuInit returns 803"})
    answer = tunedex.lookup("softmax", 4, 4, dtype="float32")
    assert (answer.config, answer.match) == (None, Match.DEFAULT)
    assert "cuInit returns 803" in answer.reason
