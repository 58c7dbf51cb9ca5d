"""Running `tuner sweep` as a user does, in a process of its own, and looking at what it leaves."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tunedex.db import Store, open_store
from tunedex.db.records import Trial

PROBLEM = "planted:batch=1,rows=37,cols=61,dtype=float32"
DIMS = {"rows": 37, "cols": 61, "dtype": "float32"}


def tuner(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tunedex", *arguments], capture_output=True, text=True, timeout=240, check=False
    )


def sweep(db: Path, *arguments: str, problem: str = PROBLEM) -> subprocess.CompletedProcess[str]:
    return tuner("sweep", "--device", "cpu", "--db", str(db), "--problem", problem, *arguments)


def start(db: Path, *arguments: str) -> subprocess.Popen[str]:
    """A sweep that goes on while the test does."""
    return subprocess.Popen(
        [sys.executable, "-m", "tunedex", "sweep", "--device", "cpu", "--db", str(db), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def trials_in(store: Store) -> list[Trial]:
    """Every trial, in the order in which they were stored."""
    return sorted(store.list_trials(limit=1000).items, key=lambda trial: trial.id or 0)


def wait_for_trials(db: Path, count: int) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if db.exists():
            with open_store(str(db)) as store:
                if len(trials_in(store)) >= count:
                    return
        time.sleep(0.05)
    raise AssertionError(f"no {count} trials in time")


def descendants(pid: int) -> list[int]:
    """The processes that ``pid`` has started, and they in turn."""
    found = [int(words) for task in Path(f"/proc/{pid}/task").iterdir() for words in _read(task / "children").split()]
    return [each for child in found for each in (child, *descendants(child))]


def wait_for_end(pids: list[int]) -> None:
    end = time.monotonic() + 60
    while any(_lives(pid) for pid in pids):
        assert time.monotonic() < end, f"one of {pids} lives on"
        time.sleep(0.1)


def _lives(pid: int) -> bool:
    return _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[:1] not in ([], ["Z"])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
