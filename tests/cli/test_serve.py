"""`tuner serve`: a real process on a real socket."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tunedex.cli.app import run
from tunedex.db import open_store

KEY = "cpu-some_model-8c-avx2"
ASKED = {"kernel": "softmax", "device": KEY, "rows": "8", "cols": "64", "dtype": "float32"}


@contextmanager
def server(database: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A server on a free port: its process, its address, and the lines that it said before it was up."""
    command = [sys.executable, "-m", "tunedex", "serve", "--port", "0", "--db", str(database), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in process.stderr:
            lines.append(line)
            if match := re.search(r"Tunedex answers at http://\S+:(\d+)", line):
                yield process, f"http://127.0.0.1:{match[1]}", lines
                break
        else:
            raise AssertionError(f"the server did not start: {''.join(lines)}")
    finally:
        process.kill()
        process.wait(60)
        process.stdout.close()
        process.stderr.close()


def test_it_answers_until_it_is_asked_to_stop(tmp_path: Path) -> None:
    database = tmp_path / "tunedex.db"
    with server(database) as (process, base, lines):
        assert f"docs at {base}/docs" in lines[-1]
        assert str(database) in lines[-1]
        assert f"{database}, which was not there: an empty one is made; " in lines[-1]
        assert len(lines) == 1  # no warning on the loopback address
        with httpx.Client(base_url=base) as client:
            assert client.get("/readyz").json() == {"status": "ok"}
            assert client.get("/v1/lookup", params=ASKED).json()["match"] == "default"
            assert client.get("/").headers["content-type"].startswith("text/html")
            assert client.head("/v1/devices").content == b""
            assert "server" not in client.get("/healthz").headers
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", "")

    with open_store(str(database)) as store:  # what was counted was written at the end
        assert [(miss.device, miss.count) for miss in store.list_misses().items] == [(KEY, 1)]


def test_ctrl_c_is_a_normal_end(tmp_path: Path) -> None:
    with server(tmp_path / "tunedex.db") as (process, _, _):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", "")


def test_a_killed_server_leaves_a_database_that_the_next_one_opens(tmp_path: Path) -> None:
    database = tmp_path / "tunedex.db"
    for _ in range(2):
        with server(database) as (process, base, _):
            assert httpx.get(f"{base}/v1/lookup", params=ASKED).status_code == 200
            process.kill()


def test_elsewhere_than_on_the_loopback_address_it_warns(tmp_path: Path) -> None:
    with server(tmp_path / "tunedex.db", "--host", "0.0.0.0") as (_, base, lines):
        assert "warning" in lines[0]
        assert "writes" in lines[0]
        assert httpx.get(f"{base}/healthz").status_code == 200


def test_a_report_through_a_proxy_counts_as_from_elsewhere(tmp_path: Path) -> None:
    report = {"device": KEY, "misses": [{"kernel": "softmax", "dims": {"rows": 8, "cols": 8}, "dtype": "float32"}]}
    with server(tmp_path / "tunedex.db") as (_, base, _):
        assert httpx.post(f"{base}/v1/misses", json=report).status_code == 202
        reply = httpx.post(f"{base}/v1/misses", json=report, headers={"X-Forwarded-For": "192.0.2.1"})
        assert (reply.status_code, reply.json()["type"]) == (403, "/problems#writes-refused")


def test_requests_that_are_no_http_do_not_stop_it(tmp_path: Path) -> None:
    with server(tmp_path / "tunedex.db") as (_, base, _):
        port = int(base.rpartition(":")[2])
        for rubbish in (b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nHost:\r\nX: " + b"y" * 100_000):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                connection.sendall(rubbish)
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(60)
                try:
                    reply = connection.recv(100)
                except ConnectionResetError:
                    reply = b""
                assert b" 500 " not in reply
        assert httpx.get(f"{base}/healthz").status_code == 200


def test_a_port_that_is_taken_is_one_line_and_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(["serve", "--port", str(port), "--db", str(tmp_path / "new.db")]) == 2

    err = capsys.readouterr().err
    assert err == f"tuner: port {port} on 127.0.0.1 is taken; choose another with --port\n"
    assert list(tmp_path.iterdir()) == []  # nothing is made for a server that cannot start


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--port", "-1"], "--port -1"),
        (["--port", "65536"], "--port 65536"),
        (["--port", "x"], "port"),
        (["--host", "no.such.host.invalid"], "--host"),
        (["--host", "192.0.2.1"], "--host '192.0.2.1' is no address of this machine"),
        (["--host", "a" * 300], "--host"),
        (["--host", ""], "--host"),
        (["--db", "mysql://x/y"], "scheme"),
        (["--db", "/dev/null/x/tunedex.db"], "/dev/null/x"),
        (["--db", "/proc/nowhere/x.db"], "there is no folder /proc/nowhere"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    defaults = ["--port", "0", "--db", str(tmp_path / "new.db")]
    assert run(["serve", *defaults, *options]) == 2

    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
    assert list(tmp_path.iterdir()) == []


def test_a_database_of_rubbish_is_one_line_and_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rubbish = tmp_path / "rubbish.db"
    rubbish.write_bytes(bytes(range(256)) * 64)

    assert run(["serve", "--port", "0", "--db", str(rubbish)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
