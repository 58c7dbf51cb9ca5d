"""A child process is killed, dies, or hangs: the caller learns it, and the next call works."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from tunedex.core.errors import BadInput
from tunedex.tuner.process import ChildProcess, ProcessFailure, RemoteError


class Subject:
    def __init__(self, start: int) -> None:
        self.value = start

    def add(self, number: int) -> int:
        self.value += number
        return self.value

    def pid(self) -> int:
        return os.getpid()

    def fail(self) -> None:
        raise ValueError("of no use")

    def refuse(self) -> None:
        raise BadInput("rows=0 is zero", field="rows")

    def leave(self) -> None:
        sys.stderr.write("last words\n")
        sys.stderr.flush()
        os._exit(0)

    def abort(self) -> None:
        os.abort()

    def hang(self) -> None:
        time.sleep(600)

    def flood(self) -> int:
        for _ in range(100):
            os.write(1, b"x" * 100_000)
        return 1


class Unmakable:
    def __init__(self) -> None:
        raise ValueError("cannot be made")


@pytest.fixture
def child():
    child = ChildProcess(Subject, 1, start_s=60)
    yield child
    child.close()


def test_calls_reach_one_object(child: ChildProcess) -> None:
    assert child.call("add", 2, timeout_s=10) == 3
    assert child.call("add", 2, timeout_s=10) == 5
    assert child.call("pid", timeout_s=10) != os.getpid()
    assert child.starts == 1


def test_an_exception_is_told_and_the_child_lives_on(child: ChildProcess) -> None:
    with pytest.raises(RemoteError, match="ValueError: of no use"):
        child.call("fail", timeout_s=10)
    with pytest.raises(BadInput) as caught:
        child.call("refuse", timeout_s=10)
    assert caught.value.field == "rows"
    assert child.call("add", 1, timeout_s=10) == 2


@pytest.mark.parametrize(
    ("method", "exit_code", "words"),
    [("leave", 0, "exited with 0: last words"), ("abort", -signal.SIGABRT, "killed by SIGABRT")],
)
def test_a_child_that_ends_is_a_failure_even_with_exit_code_zero(
    child: ChildProcess, method: str, exit_code: int, words: str
) -> None:
    with pytest.raises(ProcessFailure, match=words) as caught:
        child.call(method, timeout_s=20)
    assert caught.value.exit_code == exit_code
    assert not child.running
    assert child.call("add", 1, timeout_s=30) == 2
    assert child.starts == 2


def test_a_hang_is_killed(child: ChildProcess) -> None:
    child.call("pid", timeout_s=10)
    with pytest.raises(ProcessFailure, match="longer than") as caught:
        child.call("hang", timeout_s=0.2)
    assert caught.value.timed_out
    assert child.call("add", 1, timeout_s=30) == 2


def test_a_flood_of_output_does_not_block(child: ChildProcess) -> None:
    assert child.call("flood", timeout_s=30) == 1


def test_a_child_killed_from_outside_is_a_failure(child: ChildProcess) -> None:
    os.kill(child.call("pid", timeout_s=10), signal.SIGKILL)
    with pytest.raises(ProcessFailure, match="SIGKILL"):
        child.call("add", 1, timeout_s=10)


def test_an_object_that_cannot_be_made_is_told() -> None:
    child = ChildProcess(Unmakable, start_s=60)
    with pytest.raises(RemoteError, match="cannot be made"):
        child.call("anything", timeout_s=10)
    assert not child.running
