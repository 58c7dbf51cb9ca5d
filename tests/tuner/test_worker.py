"""The measuring process and the one that takes its place: real children, which say who they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tunedex.tuner.process import ChildProcess
from tunedex.tuner.worker import Worker

START_S = 60.0


class Subject:
    """Knows its process; starts only where ``allowed`` is there."""

    def __init__(self, allowed: Path) -> None:
        if not allowed.exists():
            raise RuntimeError("not allowed")

    def pid(self) -> int:
        return os.getpid()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def allowed(tmp_path: Path) -> Path:
    path = tmp_path / "allowed"
    path.touch()
    return path


@pytest.fixture
def worker_of(allowed: Path) -> Iterator[Callable[[bool], Worker]]:
    made: list[Worker] = []

    def make(ahead: bool) -> Worker:
        made.append(Worker(lambda: ChildProcess(Subject, allowed, start_s=START_S), ahead=ahead))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


def pid_of(worker: Worker) -> int:
    found: int = worker.call("pid", timeout_s=START_S)
    return found


@pytest.mark.parametrize("ahead", [True, False])
def test_a_renewed_worker_is_another_process_and_the_first_is_gone(
    worker_of: Callable[[bool], Worker], ahead: bool
) -> None:
    worker = worker_of(ahead)
    first = pid_of(worker)
    worker.prepare()
    assert pid_of(worker) == first
    worker.renew()
    assert worker.running is ahead
    second = pid_of(worker)
    assert second != first
    assert not alive(first)
    worker.close()
    assert not alive(second)


def test_one_that_cannot_be_started_ahead_is_started_when_needed(
    worker_of: Callable[[bool], Worker], allowed: Path
) -> None:
    worker = worker_of(True)
    first = pid_of(worker)
    allowed.unlink()
    worker.prepare()
    worker.renew()
    assert not worker.running
    allowed.touch()
    assert pid_of(worker) != first


def test_closing_ends_one_that_is_being_started(worker_of: Callable[[bool], Worker]) -> None:
    worker = worker_of(True)
    worker.prepare()
    worker.close()
    worker.close()
    assert not worker.running


def test_a_discarded_worker_starts_anew(worker_of: Callable[[bool], Worker]) -> None:
    worker = worker_of(False)
    first = pid_of(worker)
    worker.discard()
    assert not worker.running
    assert pid_of(worker) != first
