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
from collections.abc import Iterator
from pathlib import Path

import process_subject
import pytest
from process_subject import Subject, Unmakable

from tunedex.core.errors import BadInput
from tunedex.core.measurement import FailureKind
from tunedex.tuner.machine import stat_fields
from tunedex.tuner.process import ChildProcess, ProcessFailure, RemoteError, phase
from tunedex.tuner.settings import SETTINGS


@pytest.fixture
def child() -> Iterator[ChildProcess]:
    child = ChildProcess(Subject, 1, start_s=60)
    yield child
    child.close()


def lives(process: int) -> bool:
    return stat_fields(process)[:1] not in ([], ["Z"], ["X"])


def wait_for_the_end_of(*processes: int) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end and any(map(lives, processes)):
        time.sleep(0.05)
    assert not any(map(lives, processes))


class TestCalls:
    def test_they_reach_one_object(self, child: ChildProcess) -> None:
        assert child.call("add", 2, timeout_s=10) == 3
        assert child.call("add", 2, timeout_s=10) == 5
        assert child.call("pids", timeout_s=10)[0] != os.getpid()
        assert child.starts == 1

    def test_a_child_may_be_started_before_it_is_called(self, child: ChildProcess) -> None:
        child.start()
        child.start()
        assert child.running
        assert child.call("add", 2, timeout_s=10) == 3
        assert child.starts == 1

    def test_a_child_outlives_the_thread_that_started_it(self, child: ChildProcess) -> None:
        thread = threading.Thread(target=child.start)
        thread.start()
        thread.join()
        assert child.call("add", 2, timeout_s=10) == 3
        assert child.starts == 1

    @pytest.mark.parametrize(
        ("method", "arguments", "words"),
        [
            ("fail", [], "ValueError: of no use"),
            ("fail_untold", [], "Untold: its message cannot be read"),
            ("leave_softly", [0], "SystemExit: 0"),
            ("interrupt", [], "KeyboardInterrupt"),
            ("unsendable", [], "pickle"),
            ("missing", [], "AttributeError"),
        ],
    )
    def test_what_is_raised_is_told_and_the_child_lives_on(
        self, child: ChildProcess, method: str, arguments: list[int], words: str
    ) -> None:
        with pytest.raises(RemoteError, match=words):
            child.call(method, *arguments, timeout_s=10)
        assert child.call("add", 1, timeout_s=10) == 2
        assert child.starts == 1

    def test_an_exception_of_ours_arrives_as_it_is(self, child: ChildProcess) -> None:
        with pytest.raises(BadInput) as caught:
            child.call("refuse", timeout_s=10)
        assert caught.value.field == "rows"

    def test_an_object_that_cannot_be_made_is_told(self) -> None:
        child = ChildProcess(Unmakable, start_s=60)
        with pytest.raises(RemoteError, match="cannot be made"):
            child.call("anything", timeout_s=10)
        assert not child.running

    def test_a_factory_that_the_child_does_not_find_is_told(
        self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        made = pickle.dumps((process_subject.Vanishing, ()))
        child = ChildProcess(Subject, 1, start_s=60)
        monkeypatch.setattr(child, "_made", made.replace(b"Vanishing", b"Vanished!"))
        with pytest.raises(RemoteError, match="Vanished!"):
            child.start()
        assert capfd.readouterr().err == ""

    def test_a_retired_child_is_started_no_more(self, child: ChildProcess) -> None:
        child.start()
        timer = threading.Timer(0.3, child.retire)
        timer.start()
        with pytest.raises(ProcessFailure, match="SIGKILL"):
            child.call("hang", timeout_s=60)
        timer.join()
        with pytest.raises(ProcessFailure, match="retired"):
            child.call("add", 1, timeout_s=10)

    def test_a_phase_named_outside_a_child_is_nobody_s(self) -> None:
        phase("nowhere")


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
            child.call(method, timeout_s=60)
        assert caught.value.exit_code == exit_code
        assert caught.value.kind is FailureKind.CRASH
        assert not child.running
        assert child.call("add", 1, timeout_s=30) == 2
        assert child.starts == 2

    def test_a_kill_from_outside(self, child: ChildProcess) -> None:
        number, _ = child.call("pids", timeout_s=10)
        os.kill(number, signal.SIGKILL)
        with pytest.raises(ProcessFailure, match="SIGKILL") as caught:
            child.call("add", 1, timeout_s=10)
        assert caught.value.kind is FailureKind.CRASH

    def test_a_kill_while_memory_ran_out_is_laid_on_memory(
        self, child: ChildProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        number, _ = child.call("pids", timeout_s=10)
        kills = iter([0, 1])
        monkeypatch.setattr("tunedex.tuner.process.memory_kills", lambda: next(kills))
        threading.Timer(0.2, os.kill, (number, signal.SIGKILL)).start()
        with pytest.raises(ProcessFailure, match="out of memory") as caught:
            child.call("hang", timeout_s=60)
        assert caught.value.kind is FailureKind.OOM

    def test_one_that_takes_too_much_memory(self) -> None:
        child = ChildProcess(Subject, 1, start_s=60, memory_bytes=2**29)
        try:
            with pytest.raises(ProcessFailure, match=r"eat: the worker took .* GB of memory, more than") as caught:
                child.call("eat", timeout_s=60)
            assert caught.value.kind is FailureKind.OOM
            assert child.call("add", 1, timeout_s=30) == 2
        finally:
            child.close()


class TestHangs:
    def test_a_hang_is_killed_when_its_time_is_over(self, child: ChildProcess) -> None:
        child.start()
        with pytest.raises(ProcessFailure, match=r"hang \(spinning\) took longer than 2 s") as caught:
            child.call("hang", timeout_s=2)
        assert caught.value.kind is FailureKind.TIMEOUT
        assert caught.value.timed_out
        assert child.call("add", 1, timeout_s=30) == 2

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
        child = ChildProcess(Subject, 1, start_s=60, heartbeat_s=2)
        try:
            with pytest.raises(ProcessFailure, match=words) as caught:
                child.call(method, timeout_s=250)
            assert caught.value.kind is kind
            assert child.call("add", 1, timeout_s=30) == 2
        finally:
            child.close()

    def test_a_stopped_child_is_no_hang_when_its_time_is_over_first(self, child: ChildProcess) -> None:
        child.start()
        with pytest.raises(ProcessFailure, match="stopped by a signal"):
            child.call("stop", timeout_s=1)

    def test_time_in_which_the_parent_did_not_run_is_not_the_child_s(self) -> None:
        """All are stopped, as by a scheduler, for longer than the heart may, and go on."""
        program = (
            "from process_subject import Subject; from tunedex.tuner.process import ChildProcess\n"
            "child = ChildProcess(Subject, 1, start_s=60, heartbeat_s=1.5)\n"
            "print(child.call('pids', timeout_s=10)[0], flush=True)\n"
            "try: child.call('hang', timeout_s=3)\n"
            "except Exception as error: print(error, flush=True)\n"
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
        ) as parent:
            assert parent.stdout is not None
            number = int(parent.stdout.readline())
            time.sleep(0.7)
            for process in (parent.pid, number):
                os.kill(process, signal.SIGSTOP)
            time.sleep(2.5)
            os.kill(parent.pid, signal.SIGCONT)
            time.sleep(0.2)
            os.kill(number, signal.SIGCONT)
            assert "took longer than 3 s" in parent.stdout.read()


class TestOutput:
    def test_a_flood_blocks_nothing_and_is_kept_nowhere(self, child: ChildProcess) -> None:
        assert child.call("flood", 100_000_000, timeout_s=60) == 100_000_000
        with pytest.raises(ProcessFailure, match="exited with 0: last words") as caught:
            child.call("leave", timeout_s=10)
        assert len(str(caught.value)) < SETTINGS.worker.tail_bytes

    def test_what_an_earlier_call_printed_is_not_quoted(self, child: ChildProcess) -> None:
        child.call("flood", 1_000_000, timeout_s=60)
        with pytest.raises(ProcessFailure) as caught:
            child.call("abort", timeout_s=10)
        assert str(caught.value).endswith("SIGABRT")

    def test_it_is_not_the_parent_s(self, child: ChildProcess, capfd: pytest.CaptureFixture[str]) -> None:
        child.call("flood", 200_000, timeout_s=60)
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
        number, group = child.call("pids", timeout_s=10)
        assert group == number != os.getpgrp()

    @pytest.mark.parametrize("last", ["close", "retire", "hang", "abort"])
    def test_what_a_child_started_ends_with_it(self, child: ChildProcess, last: str) -> None:
        number, _ = child.call("pids", timeout_s=10)
        other = child.call("start_another", timeout_s=10)
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
