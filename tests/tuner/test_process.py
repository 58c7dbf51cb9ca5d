"""A child process is killed, dies, or hangs: the caller learns it, and the next call works."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import process_subject
import pytest
from process_subject import Subject, Unmakable

from tunedex.core.errors import BadInput
from tunedex.core.measurement import FailureKind
from tunedex.tuner.machine import stat_fields
from tunedex.tuner.process import ChildProcess, ProcessFailure, RemoteError, phase
from tunedex.tuner.settings import SETTINGS

#: Longer than anything here takes that ends by itself, on however slow a machine.
LONG_S = 60.0


@pytest.fixture
def child() -> Iterator[ChildProcess]:
    child = ChildProcess(Subject, 1, start_s=LONG_S)
    yield child
    child.close()


def lives(process: int) -> bool:
    return stat_fields(process)[:1] not in ([], ["Z"], ["X"])


def wait_for_the_end_of(*processes: int) -> None:
    end = time.monotonic() + LONG_S
    while time.monotonic() < end and any(map(lives, processes)):
        time.sleep(0.05)
    assert not any(map(lives, processes))


def once_it_hangs(child: ChildProcess, action: Callable[[], object]) -> threading.Thread:
    """A thread that does ``action`` when ``child``, which runs, has come to its call of ``hang``."""

    def act() -> None:
        end = time.monotonic() + LONG_S
        while time.monotonic() < end and (child._running is None or child._running.pulse.phase != "spinning"):
            time.sleep(0.02)
        action()

    thread = threading.Thread(target=act)
    thread.start()
    return thread


class TestCalls:
    def test_they_reach_one_object(self, child: ChildProcess) -> None:
        assert child.call("add", 2, timeout_s=LONG_S) == 3
        assert child.call("add", 2, timeout_s=LONG_S) == 5
        assert child.call("pids", timeout_s=LONG_S)[0] != os.getpid()
        assert child.starts == 1

    def test_a_child_may_be_started_before_it_is_called(self, child: ChildProcess) -> None:
        child.start()
        child.start()
        assert child.running
        assert child.call("add", 2, timeout_s=LONG_S) == 3
        assert child.starts == 1

    def test_a_child_outlives_the_thread_that_started_it(self, child: ChildProcess) -> None:
        thread = threading.Thread(target=child.start)
        thread.start()
        thread.join()
        assert child.call("add", 2, timeout_s=LONG_S) == 3
        assert child.starts == 1

    @pytest.mark.parametrize(
        ("method", "arguments", "words"),
        [
            ("fail", [], "ValueError: of no use"),
            ("fail_untold", [], "Untold: its message cannot be read"),
            ("leave_softly", [0], "SystemExit: 0"),
            ("interrupt", [], "KeyboardInterrupt"),
            ("unsendable", [], "pickle"),
            ("refuse_particularly", [], "Particular: of no use"),
            ("missing", [], "AttributeError"),
        ],
    )
    def test_what_is_raised_is_told_and_the_child_lives_on(
        self, child: ChildProcess, method: str, arguments: list[int], words: str
    ) -> None:
        with pytest.raises(RemoteError, match=words):
            child.call(method, *arguments, timeout_s=LONG_S)
        assert child.call("add", 1, timeout_s=LONG_S) == 2
        assert child.starts == 1

    def test_an_exception_of_ours_arrives_as_it_is(self, child: ChildProcess) -> None:
        with pytest.raises(BadInput) as caught:
            child.call("refuse", timeout_s=LONG_S)
        assert caught.value.field == "rows"

    def test_an_answer_that_cannot_be_read_is_the_call_s_failure(self, child: ChildProcess) -> None:
        with pytest.raises(ProcessFailure, match="unreadable: the answer cannot be read: ValueError: invalid literal"):
            child.call("unreadable", timeout_s=LONG_S)
        assert not child.running
        assert child.call("add", 1, timeout_s=LONG_S) == 2

    def test_an_object_that_cannot_be_made_is_told(self) -> None:
        child = ChildProcess(Unmakable, start_s=LONG_S)
        with pytest.raises(RemoteError, match="cannot be made"):
            child.call("anything", timeout_s=LONG_S)
        assert not child.running

    def test_a_factory_that_the_child_does_not_find_is_told(
        self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        made = pickle.dumps((process_subject.Vanishing, ()))
        child = ChildProcess(Subject, 1, start_s=LONG_S)
        monkeypatch.setattr(child, "_made", made.replace(b"Vanishing", b"Vanished!"))
        with pytest.raises(RemoteError, match="Vanished!"):
            child.start()
        assert capfd.readouterr().err == ""

    def test_a_retired_child_is_started_no_more(self, child: ChildProcess) -> None:
        child.start()
        retiring = once_it_hangs(child, child.retire)
        with pytest.raises(ProcessFailure, match="SIGKILL"):
            child.call("hang", timeout_s=LONG_S)
        retiring.join()
        with pytest.raises(ProcessFailure, match="retired"):
            child.call("add", 1, timeout_s=LONG_S)

    def test_a_phase_named_outside_a_child_is_nobody_s(self) -> None:
        phase("nowhere")


class TestWantOfMeans:
    """No process, no file, or no thread is to be had."""

    @pytest.mark.parametrize(
        ("where", "error"),
        [
            ("multiprocessing.process.BaseProcess.start", BlockingIOError(11, "Resource temporarily unavailable")),
            ("tunedex.tuner.tail.Pipe", OSError(24, "Too many open files")),
            ("threading.Thread.start", RuntimeError("can't start new thread")),
        ],
    )
    def test_a_start_without_them_fails_and_leaves_nothing_open(
        self, child: ChildProcess, where: str, error: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refused(*arguments: object, **more: object) -> None:
            raise error

        child.start()
        child.close()
        gc.collect()
        files, threads = Path("/proc/self/fd"), threading.active_count()
        before = len(list(files.iterdir()))
        with monkeypatch.context() as patched:
            patched.setattr(where, refused)
            with pytest.raises(ProcessFailure, match=r"a worker cannot be started: .*(unavailable|open files|thread)"):
                child.start()
        gc.collect()
        assert len(list(files.iterdir())) == before
        assert threading.active_count() == threads
        assert child.call("add", 1, timeout_s=LONG_S) == 2


class TestDeaths:
    @pytest.mark.parametrize(
        ("method", "exit_code", "words"),
        [
            ("leave", 0, "leave: the worker exited with 0: last words"),
            ("leave_unprintably", 3, "exited with 3: \ufffd\\[31merror\ufffd in /tmp/\ufffd.cu$"),
            ("abort", -signal.SIGABRT, r"abort \(folding\): the worker was killed by SIGABRT"),
            ("kill_unusually", -40, "killed by signal 40"),
            ("start_another_and_abort", -signal.SIGABRT, "killed by SIGABRT"),
        ],
    )
    def test_an_end_is_a_failure_even_with_exit_code_zero(
        self, child: ChildProcess, method: str, exit_code: int, words: str
    ) -> None:
        with pytest.raises(ProcessFailure, match=words) as caught:
            child.call(method, timeout_s=LONG_S)
        assert caught.value.exit_code == exit_code
        assert caught.value.kind is FailureKind.CRASH
        assert not child.running
        assert child.call("add", 1, timeout_s=LONG_S) == 2
        assert child.starts == 2

    def test_a_kill_from_outside(self, child: ChildProcess) -> None:
        number, _ = child.call("pids", timeout_s=LONG_S)
        os.kill(number, signal.SIGKILL)
        with pytest.raises(ProcessFailure, match="SIGKILL") as caught:
            child.call("add", 1, timeout_s=LONG_S)
        assert caught.value.kind is FailureKind.CRASH

    def test_a_kill_while_memory_ran_out_is_laid_on_memory(
        self, child: ChildProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        number, _ = child.call("pids", timeout_s=LONG_S)
        kills = iter([0, 1])
        monkeypatch.setattr("tunedex.tuner.process.memory_kills", lambda: next(kills))
        killing = once_it_hangs(child, lambda: os.kill(number, signal.SIGKILL))
        with pytest.raises(ProcessFailure, match="out of memory") as caught:
            child.call("hang", timeout_s=LONG_S)
        killing.join()
        assert caught.value.kind is FailureKind.OOM

    def test_one_that_takes_too_much_memory(self) -> None:
        child = ChildProcess(Subject, 1, start_s=LONG_S, memory_bytes=2**29)
        try:
            with pytest.raises(ProcessFailure, match=r"eat: the worker took .* GB of memory, more than") as caught:
                child.call("eat", timeout_s=LONG_S)
            assert caught.value.kind is FailureKind.OOM
            assert child.call("add", 1, timeout_s=LONG_S) == 2
        finally:
            child.close()


class TestHangs:
    def test_a_hang_is_killed_when_its_time_is_over(self, child: ChildProcess) -> None:
        child.start()
        with pytest.raises(ProcessFailure, match=r"hang \(spinning\) took longer than 2 s") as caught:
            child.call("hang", timeout_s=2)
        assert caught.value.kind is FailureKind.TIMEOUT
        assert caught.value.timed_out
        assert child.call("add", 1, timeout_s=LONG_S) == 2

    @pytest.mark.parametrize(
        ("method", "kind", "words"),
        [
            (
                "hang_with_lock",
                FailureKind.TIMEOUT,
                r"hang_with_lock \(native\): the worker gave no sign of life for 2 s",
            ),
            ("stop", FailureKind.CRASH, "stop: the worker was stopped by a signal"),
        ],
    )
    def test_a_child_whose_heart_has_stopped_is_killed_long_before(
        self, method: str, kind: FailureKind, words: str
    ) -> None:
        child = ChildProcess(Subject, 1, start_s=LONG_S, heartbeat_s=2)
        try:
            with pytest.raises(ProcessFailure, match=words) as caught:
                child.call(method, timeout_s=250)
            assert caught.value.kind is kind
            assert child.call("add", 1, timeout_s=LONG_S) == 2
        finally:
            child.close()

    def test_a_stopped_child_is_no_hang_when_its_time_is_over_first(self, child: ChildProcess) -> None:
        child.start()
        with pytest.raises(ProcessFailure, match="stopped by a signal"):
            child.call("stop", timeout_s=3)

    def test_time_in_which_the_parent_did_not_run_is_not_the_child_s(self) -> None:
        """By its clock every second look comes an hour late, as after a machine's sleep: neither the heart's silence
        nor the call's time has grown by that."""
        looks = 0

        def clock() -> float:
            nonlocal looks
            looks += 1
            return looks // 2 * 3600.0 + looks * SETTINGS.worker.beat_s

        child = ChildProcess(Subject, 1, start_s=600, clock=clock)
        try:
            child.start()
            looks = 0
            with pytest.raises(ProcessFailure, match=r"hang \(spinning\) took longer than 6 s"):
                child.call("hang", timeout_s=6)
            # An hour counts as twice a beat, so that six seconds take eight looks: 0.5 and 1 s in turn.
            assert looks == 1 + 8
        finally:
            child.close()

    def test_one_that_cannot_be_killed_does_not_keep_the_program_from_ending(self) -> None:
        """As where a device hangs: here nobody sends the signal, and what ties the child to the program is held."""
        program = (
            "import os, tunedex.tuner.process as process\n"
            "from dataclasses import replace\n"
            "from process_subject import Subject\n"
            "process.SETTINGS = replace(process.SETTINGS, worker=replace(process.SETTINGS.worker, kill_s=0.2))\n"
            "process._Running.kill = lambda running: None\n"
            "child = process.ChildProcess(Subject, 1, start_s=60)\n"
            "print(child.call('pids', timeout_s=60)[0], flush=True)\n"
            "os.dup(child._running.lifeline.fileno())\n"
            "try: child.call('hang_deaf', timeout_s=1)\n"
            "except process.ProcessFailure as error: print(error, flush=True)\n"
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment, timeout=60, check=True
        )
        number, told = done.stdout.splitlines()
        assert told == "hang_deaf (spinning) took longer than 1 s"
        wait_for_the_end_of(int(number))


class TestOutput:
    def test_a_flood_blocks_nothing_and_is_kept_nowhere(self, child: ChildProcess) -> None:
        assert child.call("flood", 100_000_000, timeout_s=LONG_S) == 100_000_000
        with pytest.raises(ProcessFailure, match="exited with 0: last words") as caught:
            child.call("leave", timeout_s=LONG_S)
        assert len(str(caught.value)) < SETTINGS.worker.tail_bytes

    def test_what_an_earlier_call_printed_is_not_quoted(self, child: ChildProcess) -> None:
        child.call("flood", 1_000_000, timeout_s=LONG_S)
        with pytest.raises(ProcessFailure) as caught:
            child.call("abort", timeout_s=LONG_S)
        assert str(caught.value).endswith("SIGABRT")

    def test_it_is_not_the_parent_s(self, child: ChildProcess, capfd: pytest.CaptureFixture[str]) -> None:
        child.call("flood", 200_000, timeout_s=LONG_S)
        assert capfd.readouterr() == ("", "")


class TestGroup:
    def test_a_child_that_is_closed_leaves_nothing_behind(self, child: ChildProcess) -> None:
        child.start()
        child.close()
        child.close()
        files, threads = Path("/proc/self/fd"), threading.active_count()
        before = len(list(files.iterdir()))
        for _ in range(3):
            child.start()
            child.close()
        gc.collect()
        assert len(list(files.iterdir())) <= before
        assert threading.active_count() == threads

    def test_a_child_leads_its_own(self, child: ChildProcess) -> None:
        number, group = child.call("pids", timeout_s=LONG_S)
        assert group == number != os.getpgrp()

    @pytest.mark.parametrize("last", ["close", "retire", "hang", "abort"])
    def test_what_a_child_started_ends_with_it(self, child: ChildProcess, last: str) -> None:
        number, _ = child.call("pids", timeout_s=LONG_S)
        other = child.call("start_another", timeout_s=LONG_S)
        assert lives(other)
        if last in ("close", "retire"):
            getattr(child, last)()
        else:
            with pytest.raises(ProcessFailure):
                child.call(last, timeout_s=1)
        wait_for_the_end_of(number, other)

    @pytest.mark.parametrize("last", ["hang", "hang_with_lock", "stop"])
    def test_nothing_outlives_a_parent_that_is_killed(self, last: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        script = Path(process_subject.__file__)
        with subprocess.Popen(
            [sys.executable, str(script), last], stdout=subprocess.PIPE, text=True, env=environment
        ) as parent:
            assert parent.stdout is not None
            numbers = [int(word) for word in parent.stdout.readline().split()]
            time.sleep(0.3)
            assert all(map(lives, numbers))
            parent.kill()
        wait_for_the_end_of(*numbers)
