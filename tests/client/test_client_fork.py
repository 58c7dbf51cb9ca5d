"""A client in a process that forks, spawns or ends: no lock, no connection and no miss is shared, and no exit waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from demo import BEST, DEMO, H200, row, snapshot

import tunedex
from tunedex.client.cache import Stamped
from tunedex.client.client import Client
from tunedex.core.canonical import canonical_json
from tunedex.core.problem import Problem
from tunedex.db import open_store

CHILDREN = 8


class Shelf:
    name = "shelf"
    origin = "server"
    wait_s = 60.0
    cached = True

    def fetch(self, device: str, channel: str, revision: int | None, etag: str) -> Stamped | None:
        return None if etag == "3" else Stamped(snapshot(), "3")

    def report(self, device: str, misses: Mapping[Problem, int]) -> bool:
        return True


def in_child(work: Any) -> int:
    """Fork, do ``work`` in the child, and give its exit code: 0 where it returns true."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Python 3.12 warns where other threads run, as they do here
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        code = 0 if work() else 2
    finally:
        os._exit(code)


def test_children_of_a_process_whose_locks_are_held_look_up_and_refresh() -> None:
    client = Client(Shelf(), H200, signatures=[DEMO])
    client.start()
    client.lookup("demo", 7, 512, dtype="bf16")
    held, release = threading.Event(), threading.Event()

    def busy() -> None:
        with client._lock, client._refreshing, tunedex._connecting:
            held.set()
            release.wait(30)

    thread = threading.Thread(target=busy)
    thread.start()
    held.wait()

    def work() -> bool:
        tuned = client.lookup("demo", 4096, 512, dtype="bf16").config == BEST
        new = client.lookup("demo", 9, 512, dtype="bf16").config is not None
        client.refresh()
        other = Client(Shelf(), H200, signatures=[DEMO])
        other.start()
        default = tunedex.default_client("cpu").lookup("demo", 1, 1)
        return tuned and new and other.revision == 3 and bool(default.reason)

    children = [in_child(work) for _ in range(CHILDREN)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    release.set()
    thread.join()
    assert codes == [0] * CHILDREN
    assert client.status().misses == 1


def test_misses_are_the_process_own() -> None:
    client = Client(Shelf(), H200, signatures=[DEMO])
    client.start()
    client.lookup("demo", 7, 512, dtype="bf16")
    child = in_child(lambda: client.status().misses == 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


ASK = """
import json, sys, tunedex
answer = tunedex.lookup("demo", int(sys.argv[1]), 512, dtype="bf16", device=sys.argv[2])
print(json.dumps(answer.to_dict()))
"""


def ask(rows: int, **settings: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ASK, str(rows), H200.key],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_process_reports_its_misses_when_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"
    with open_store(str(path)) as store:
        store.register_device(H200)
        store.register_signatures([DEMO])
        store.publish(
            H200.key, {DEMO.problem({"rows": 4096, "cols": 512, "dtype": "bf16"}): [row(0, BEST, 9.0)]}, sweep=None
        )
    assert ask(4096, TUNEDEX_DB=str(path))["config"] == BEST.to_dict()
    assert ask(7, TUNEDEX_DB=str(path))["match"] == "default"
    with open_store(str(path)) as store:
        assert [miss.problem.dims["rows"] for miss in store.list_misses().items] == [7]


@pytest.mark.parametrize("home", ["/nonexistent", "/proc", "/dev/null"])
def test_a_user_whose_home_cannot_be_written(home: str, tmp_path: Path) -> None:
    path = tmp_path / "h200.json"
    path.write_text(canonical_json(snapshot().to_dict()))
    settings = {"HOME": home, "XDG_DATA_HOME": "", "XDG_CACHE_HOME": "", "TUNEDEX_CACHE_DIR": "", "TUNEDEX_DB": ""}
    assert ask(4096, **settings, TUNEDEX_URL=str(path))["config"] == BEST.to_dict()
    assert ask(4096, **settings)["match"] == "default"
