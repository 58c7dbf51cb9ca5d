"""The compile pool, for a device that is not here: each fault costs its own config, and memory is not overcommitted."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.measurement import Failure, FailureKind, Resources
from tunedex.core.problem import Problem
from tunedex.kernels.base import Kernel
from tunedex.kernels.registry import get_kernel
from tunedex.tuner import compiling
from tunedex.tuner.compiling import CompilePool, Compiler, MemoryGate, PoolStats, compile_pool, pool_size
from tunedex.tuner.process import ChildProcess
from tunedex.tuner.settings import SETTINGS

H200 = Device.from_key("nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g")

#: Longest that a planted compilation may take that ends by itself, or for want of memory, on however slow a machine.
COMPILE_S = 60.0
#: The same of one that hangs.
HANG_S = 6.0
#: Longest that a thread is waited for.
LONG_S = 60.0


def pool_of(compile_s: float) -> CompilePool:
    return CompilePool(H200, SETTINGS.timeouts.for_trials(compile_s), memory_bytes=3 * 2**29)


@pytest.fixture
def pool(planted: Kernel) -> Iterator[CompilePool]:
    """A pool whose processes, which start with it, know the planted kernels."""
    pool = pool_of(COMPILE_S)
    yield pool
    pool.close()


@pytest.fixture
def hasty(planted: Kernel) -> Iterator[CompilePool]:
    """A pool in which a hang is soon over."""
    pool = pool_of(HANG_S)
    yield pool
    pool.close()


@pytest.fixture
def problem(planted: Kernel) -> Problem:
    return get_kernel("faults").signature.problem({"rows": 5, "cols": 7, "dtype": "float32"})


def faulty(fault: str) -> Config:
    return Config("triton", {"fault": fault})


class TestPool:
    def test_each_fault_costs_its_own_config(self, pool: CompilePool, problem: Problem) -> None:
        planted_faults = importlib.import_module("planted_faults")
        expected = {**planted_faults.COMPILING, **planted_faults.COMPILING_APART}
        for apart in ("compile_hang", "compile_memory"):
            del expected[apart]
        futures: dict[str, Future[Resources | Failure]] = {}
        for fault in expected:
            futures[fault] = pool.submit(problem, faulty(fault))
            futures[f"after {fault}"] = pool.submit(problem, faulty("none"))
        outcomes = {fault: future.result() for fault, future in futures.items()}
        kinds = {fault: getattr(outcomes[fault], "kind", None) for fault in expected}
        assert kinds == expected
        assert all(outcomes[f"after {fault}"] == Resources() for fault in expected)
        details = {fault: found.detail for fault, found in outcomes.items() if isinstance(found, Failure)}
        assert "planted: of no use" in details["compile_error"]
        assert details["over_limit"] == "OverLimit: needs 262144 bytes of shared memory, the device has 232448"
        assert details["compile_raise"] == "Refused: no reason"
        assert details["compile_odd"] == "Odd: nothing usual"
        assert details["compile_leave"] == "SystemExit: 0"
        assert details["compile_abort"] == "compiling: compile: the worker was killed by SIGABRT"
        assert details["compile_segfault"] == "compiling: compile: the worker was killed by SIGSEGV"
        assert details["compile_exit"] == "compiling: compile: the worker exited with 0"
        stats = pool.stats()
        assert stats.compiled == len(outcomes)
        assert stats.failed == len(details) + 1  # for want of space one has no result, and is no failure

    def test_one_that_hangs_costs_its_own_config(self, hasty: CompilePool, problem: Problem) -> None:
        hanging, after = hasty.submit(problem, faulty("compile_hang")), hasty.submit(problem, faulty("none"))
        assert hanging.result() == Failure(FailureKind.TIMEOUT, f"compiling: compile took longer than {HANG_S:g} s")
        assert after.result() == Resources()
        stats = hasty.stats()
        assert (stats.compiled, stats.failed) == (2, 1)
        assert stats.compile_s > HANG_S  # the hang's alone

    def test_one_that_eats_memory_costs_its_own_config(self, pool: CompilePool, problem: Problem) -> None:
        eating, after = pool.submit(problem, faulty("compile_memory")), pool.submit(problem, faulty("none"))
        found = eating.result()
        assert isinstance(found, Failure)
        assert found.kind is FailureKind.OOM
        assert "more than the 1.61 GB that it may" in found.detail
        assert after.result() == Resources()
        stats = pool.stats()
        assert (stats.compiled, stats.failed) == (2, 1)

    @pytest.mark.parametrize(
        ("needed", "words"),
        [
            (None, "TypeError: compile() gives None, which is no Resources"),
            (12, "TypeError: compile() gives 12, which is no Resources"),
            (Resources(registers=2**70), "ValueError: registers 1180591620717411303424 is not a whole number or null"),
            (Resources(registers="x"), "ValueError: registers 'x' is not a whole number or null"),  # type: ignore[arg-type]
            (Resources(spill_bytes=float("nan")), "ValueError: spill_bytes nan is not a whole number or null"),  # type: ignore[arg-type]
            (Resources(shared_memory_bytes=-5), "ValueError: shared_memory_bytes -5 is negative"),
        ],
    )
    def test_what_a_program_cannot_need_is_its_config_s_failure(
        self, planted: Kernel, problem: Problem, monkeypatch: pytest.MonkeyPatch, needed: Any, words: str
    ) -> None:
        faults = get_kernel("faults")
        monkeypatch.setattr(type(faults.implementation("triton")), "compile", lambda *arguments: needed)
        outcome = Compiler().compile(problem, faulty("none"), H200)
        assert outcome == Failure(FailureKind.COMPILE_ERROR, words)

    def test_the_processes_start_before_there_is_anything_to_compile(self, pool: CompilePool, problem: Problem) -> None:
        pool.ready()
        assert pool.started == pool.processes
        assert pool.submit(problem, faulty("none")).result() == Resources()
        assert pool.started == pool.processes

    def test_what_a_program_needs_is_read_from_it(self, pool: CompilePool) -> None:
        problem = get_kernel("softmax").signature.problem({"rows": 64, "cols": 512, "dtype": "bfloat16"})
        kernel = get_kernel("softmax")
        for name in ("triton", "cuda"):
            tunables = kernel.implementation(name).tunables(problem, H200)
            config = Config(name, {tunable.name: tunable.values[0] for tunable in tunables})
            found = pool.submit(problem, config).result()
            assert isinstance(found, Resources), found
            assert found.registers
            assert found.shared_memory_bytes is not None
            assert found.spill_bytes is not None

    def test_closing_ends_what_compiles_and_what_waits(self, pool: CompilePool, problem: Problem) -> None:
        futures = [pool.submit(problem, faulty("compile_hang")) for _ in range(pool.processes + 2)]
        end = time.monotonic() + LONG_S
        while time.monotonic() < end and not futures[0].running():
            time.sleep(0.05)
        pool.close()
        assert all(future.done() for future in futures)
        assert futures[-1].cancelled()

    def test_a_cpu_s_compiler_runs_where_it_measures(self) -> None:
        with compile_pool(Device(kind="cpu", name="a CPU", multiprocessors=2, memory_bytes=2**33)) as none:
            assert none is None


class TestRenewal:
    """Processes whose starts fail, and those that have done enough."""

    @pytest.fixture
    def one(self, planted: Kernel) -> Iterator[CompilePool]:
        pool = CompilePool(H200, processes=1)
        yield pool
        pool.close()

    @pytest.mark.parametrize("failures", [1, 2, 1000])
    def test_a_process_that_does_not_start_is_no_config_s_fault(
        self, failures: int, problem: Problem, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """One start fails before there is anything to compile, the others when a config waits."""
        left = iter(range(failures))
        spawned = ChildProcess._spawned

        def start(child: ChildProcess) -> Any:
            if next(left, None) is not None:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            return spawned(child)

        monkeypatch.setattr(ChildProcess, "_spawned", start)
        pool = CompilePool(H200, processes=1)
        try:
            pool.ready()
            assert [pool.submit(problem, faulty("none")).result() for _ in range(2)] == [Resources()] * 2
        finally:
            pool.close()
        starts = failures < 1000
        assert pool.started == starts
        assert pool.stats().failed == (0 if starts else 2)
        assert len(caplog.messages) == (not starts)

    def test_it_is_replaced_after_so_many_configs(
        self, one: CompilePool, problem: Problem, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compiling, "SETTINGS", replace(SETTINGS, compiler_renewed_configs=2))
        assert [one.submit(problem, faulty("none")).result() for _ in range(4)] == [Resources()] * 4
        assert one.started == 2

    def test_it_is_replaced_before_it_holds_what_would_be_laid_on_a_config(
        self, one: CompilePool, problem: Problem, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one.ready()
        assert one.submit(problem, faulty("none")).result() == Resources()
        assert one.started == 1
        monkeypatch.setattr(compiling, "SETTINGS", replace(SETTINGS, compiler_renewed_bytes=2**20))
        assert one.submit(problem, faulty("none")).result() == Resources()
        assert one.started == 2


class TestBounds:
    @pytest.mark.parametrize(
        ("cores", "devices", "free_gib", "size"),
        [
            (16, 1, 128, 15),
            (16, 1, 9, 4),
            (64, 1, 40, 20),
            (1, 1, 128, 1),
            (16, 1, 0, 1),
            (2, 1, 128, 1),
            (16, 8, 128, 8),
            (16, 8, 9, 4),
            (4, 8, 128, 1),
        ],
    )
    def test_cores_and_free_memory_bound_the_processes(
        self, cores: int, devices: int, free_gib: int, size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compiling, "usable_cores", lambda: cores)
        monkeypatch.setattr(compiling, "free_memory_bytes", lambda: free_gib * 2**30)
        assert pool_size(devices) == size

    def test_devices_of_one_key_share_a_pool_that_leaves_a_core_to_each(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compiling, "usable_cores", lambda: 5)
        monkeypatch.setattr(compiling, "free_memory_bytes", lambda: 2**40)
        with compile_pool(H200, devices=4) as pool:
            assert pool is not None
            assert pool.processes == 1

    def test_a_speed_up_is_the_summed_time_over_the_wall_s(self) -> None:
        assert PoolStats(compiled=10, failed=1, compile_s=30.0, wall_s=4.0).speedup == 7.5
        assert PoolStats().speedup is None


class TestGate:
    """Configs that each need 1 byte, and take it at once."""

    @pytest.fixture
    def free(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        free = [0]
        monkeypatch.setattr(compiling, "free_memory_bytes", lambda: free[0])
        return free

    @staticmethod
    def enter(gate: MemoryGate, count: int) -> tuple[list[threading.Thread], threading.Semaphore, threading.Event]:
        """Threads that pass ``gate``, tell the semaphore, and stay inside until the event."""
        inside, leave = threading.Semaphore(0), threading.Event()

        def run() -> None:
            with gate.passed():
                inside.release()
                leave.wait(LONG_S)

        threads = [threading.Thread(target=run) for _ in range(count)]
        for thread in threads:
            thread.start()
        return threads, inside, leave

    def test_without_memory_one_compiles_at_a_time(self, free: list[int]) -> None:
        gate = MemoryGate(needed_bytes=1)
        threads, inside, leave = self.enter(gate, 3)
        assert inside.acquire(timeout=LONG_S)
        assert not inside.acquire(timeout=3 * SETTINGS.memory_poll_s)
        leave.set()
        assert inside.acquire(timeout=LONG_S)
        assert inside.acquire(timeout=LONG_S)
        for thread in threads:
            thread.join()

    def test_what_has_just_begun_counts_as_grown(self, free: list[int]) -> None:
        gate = MemoryGate(needed_bytes=1)
        free[0] = 2  # the first sees two, the second sees two and one that has begun, the third must wait
        threads, inside, leave = self.enter(gate, 3)
        assert inside.acquire(timeout=LONG_S)
        assert inside.acquire(timeout=LONG_S)
        assert not inside.acquire(timeout=3 * SETTINGS.memory_poll_s)
        free[0] = 3
        assert inside.acquire(timeout=LONG_S)
        leave.set()
        for thread in threads:
            thread.join()

    def test_a_closed_gate_holds_nobody(self, free: list[int]) -> None:
        gate = MemoryGate(needed_bytes=1)
        threads, inside, leave = self.enter(gate, 2)
        assert inside.acquire(timeout=LONG_S)
        gate.close()
        assert inside.acquire(timeout=LONG_S)
        leave.set()
        for thread in threads:
            thread.join()
