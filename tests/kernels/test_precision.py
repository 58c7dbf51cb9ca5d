"""The process-wide precision of float32 products: set for a while, by several threads, and as before afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tunedex.kernels.precision import matmul_precision

BACKEND = torch.backends.cuda.matmul
WAIT_S = 120.0


@pytest.fixture(params=["none", "ieee", "tf32"], autouse=True)
def before(request: pytest.FixtureRequest) -> Iterator[str]:
    """What the process has had before."""
    found = BACKEND.fp32_precision
    BACKEND.fp32_precision = request.param
    yield request.param
    BACKEND.fp32_precision = found


def effective() -> str:
    """The precision in which a product would be launched now."""
    return {"none": "ieee"}.get(BACKEND.fp32_precision, BACKEND.fp32_precision)


def test_it_is_set_and_restored(before: str) -> None:
    for precision in ("tf32", "ieee"):
        with matmul_precision(precision):
            assert effective() == precision
        assert BACKEND.fp32_precision == before


def test_it_is_restored_after_an_error(before: str) -> None:
    with pytest.raises(KeyError), matmul_precision("tf32"), matmul_precision("ieee"):
        raise KeyError
    assert BACKEND.fp32_precision == before


def test_nothing_is_set_where_it_is_so_already(before: str) -> None:
    with matmul_precision("tf32" if before == "tf32" else "ieee"):
        assert BACKEND.fp32_precision == before


def test_one_thread_nests(before: str) -> None:
    with matmul_precision("ieee"):
        with matmul_precision("ieee"):
            assert effective() == "ieee"
            with matmul_precision("tf32"):
                assert effective() == "tf32"
            assert effective() == "ieee"
        assert effective() == "ieee"
    assert BACKEND.fp32_precision == before


def test_what_somebody_else_sets_meanwhile_stays() -> None:
    BACKEND.fp32_precision = "ieee"
    with matmul_precision("tf32"):
        BACKEND.fp32_precision = "ieee"
    assert BACKEND.fp32_precision == "ieee"
    BACKEND.fp32_precision = "tf32"
    with matmul_precision("ieee"):
        BACKEND.fp32_precision = "none"
    assert BACKEND.fp32_precision == "none"


def test_threads_of_one_precision_run_together() -> None:
    meeting = threading.Barrier(4)

    def run() -> None:
        with matmul_precision("tf32"):
            meeting.wait(WAIT_S)  # breaks unless all four are inside

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(run) for _ in range(4)]:
            future.result(WAIT_S)


def test_threads_of_two_precisions_exclude_each_other(before: str) -> None:
    inside, leave, second = threading.Event(), threading.Event(), threading.Event()

    def first() -> str:
        with matmul_precision("ieee"):
            inside.set()
            leave.wait(WAIT_S)
            return effective()

    def other() -> str:
        with matmul_precision("tf32"):
            second.set()
            return effective()

    with ThreadPoolExecutor(2) as pool:
        results = [pool.submit(first)]
        assert inside.wait(WAIT_S)
        results.append(pool.submit(other))
        assert not second.wait(0.2)
        leave.set()
        assert [result.result(WAIT_S) for result in results] == ["ieee", "tf32"]
    assert BACKEND.fp32_precision == before


def test_two_threads_that_nest_crosswise_both_get_through(before: str) -> None:
    meeting = threading.Barrier(2)

    def run() -> list[str]:
        with matmul_precision("ieee"):
            meeting.wait(WAIT_S)
            with matmul_precision("tf32"):
                seen = [effective()]
            return [*seen, effective()]

    with ThreadPoolExecutor(2) as pool:
        assert [f.result(WAIT_S) for f in [pool.submit(run) for _ in range(2)]] == [["tf32", "ieee"]] * 2
    assert BACKEND.fp32_precision == before


def test_many_threads_each_see_their_own(before: str) -> None:
    def run(number: int) -> int:
        wrong = 0
        for turn in range(50):
            precision = ("ieee", "tf32")[(number + turn) % 2]
            with matmul_precision(precision):
                wrong += effective() != precision
                time.sleep(0)  # let another thread run here
                wrong += effective() != precision
        return wrong

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(run, range(6), timeout=WAIT_S)) == 0
    assert BACKEND.fp32_precision == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_is_not_held_up_by_a_thread_it_has_not(before: str) -> None:
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with matmul_precision("tf32"):
            inside.set()
            leave.wait(WAIT_S)

    holder = threading.Thread(target=hold)
    holder.start()
    assert inside.wait(WAIT_S)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if BACKEND.fp32_precision == before else 2
            with matmul_precision("ieee"):
                code = code if effective() == "ieee" else 3
        finally:
            os._exit(code)
    end = time.monotonic() + WAIT_S
    done, status = os.waitpid(child, os.WNOHANG)
    while not done and time.monotonic() < end:
        time.sleep(0.01)
        done, status = os.waitpid(child, os.WNOHANG)
    leave.set()
    holder.join(WAIT_S)
    assert done, "the child hangs"
    assert os.waitstatus_to_exitcode(status) == 0
    assert BACKEND.fp32_precision == before


FORK = """
import os, threading
from tunedex.kernels.precision import matmul_precision
class Held(threading.Thread):
    def run(self):
        with matmul_precision("tf32"):
            inside.set()
            leave.wait()
inside, leave = threading.Event(), threading.Event()
for held in (False, True):
    if held:
        holder = Held()
        holder.start()
        inside.wait()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
leave.set()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_says_nothing_whoever_holds_a_precision() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
