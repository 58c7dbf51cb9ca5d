"""Configs that a real GPU cannot stand: the sweep over them, and what the worker does after each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.measurement import Failure, FailureKind, Measurement, Resources
from tunedex.db import open_store
from tunedex.db.records import Stage
from tunedex.kernels.registry import all_kernels, get_kernel
from tunedex.tuner.bench import Bench
from tunedex.tuner.devices import detect
from tunedex.tuner.process import ChildProcess, ProcessFailure
from tunedex.tuner.settings import SETTINGS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

ROOT = Path(__file__).parents[2]
PLANTED = ROOT / "tests" / "tuner" / "planted"

#: A time below which no launch is, so that none is taken for impossible.
FLOOR_US = 0.01


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernel ``faults``, in this process and in those it starts."""
    monkeypatch.syspath_prepend(str(PLANTED))
    all_kernels.cache_clear()
    yield
    all_kernels.cache_clear()
    for name in ("planted", "planted_faults", "planted_triton"):
        sys.modules.pop(name, None)


@pytest.fixture
def device() -> Device:
    return detect("cuda:0")[0].device


@pytest.fixture
def worker(planted: None, device: Device) -> Iterator[ChildProcess]:
    worker = ChildProcess(Bench, device, 0, start_s=SETTINGS.timeouts.start_s)
    yield worker
    worker.close()


def opened(worker: ChildProcess) -> ChildProcess:
    problem = get_kernel("faults").signature.problem({"rows": 37, "cols": 61, "dtype": "float32"})
    worker.call("open", problem, None, FLOOR_US, timeout_s=SETTINGS.timeouts.open_s)
    return worker


def measure(worker: ChildProcess, fault: str, timeout_s: float = 60) -> Measurement | Failure:
    outcome: Measurement | Failure
    config = Config("triton", {"fault": fault})
    outcome, _ = worker.call("measure", config, Resources(), {}, timeout_s=timeout_s)
    return outcome


@pytest.mark.timeout(600)
def test_every_kind_of_failure_costs_one_trial_and_no_other_config(device: Device, tmp_path: Path) -> None:
    db = tmp_path / "tunedex.db"
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "crash_matrix.py"), "--device", "cuda:0", "--db", str(db)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["crash_matrix"] == dict.fromkeys(sorted([*FailureKind, "innocent"]), "recorded")
    with open_store(str(db)) as store:
        details = {
            trial.config.values["fault"]: trial.outcome.detail
            for trial in store.list_trials(limit=1000).items
            if trial.stage is Stage.SEARCH and isinstance(trial.outcome, Failure)
        }
    assert "illegal memory access" in details["illegal_access"]
    assert "(first call) took longer than" in details["hang"]
    assert "out of memory" in details["memory"].lower()
    assert "bytes of shared memory, the device has" in details["over_limit"]
    assert "is faster than" in details["untimed"]


def test_an_illegal_access_spoils_its_process_and_no_other(worker: ChildProcess) -> None:
    assert isinstance(measure(opened(worker), "none"), Measurement)
    broken = measure(worker, "illegal_access")
    assert isinstance(broken, Failure)
    assert broken.kind is FailureKind.ILLEGAL_ACCESS
    # The context is lost: whatever comes next fails too, until the process is replaced.
    assert isinstance(measure(worker, "innocent_1"), Failure)
    worker.close()
    for fault in ("innocent_1", "innocent_2", "none"):
        assert isinstance(measure(opened(worker), fault), Measurement)
    assert worker.starts == 2


def test_an_endless_kernel_is_killed_with_its_process(worker: ChildProcess) -> None:
    """The host waits for the device without Python's lock: the heart beats on, and the call's own time ends it."""
    assert isinstance(measure(opened(worker), "none"), Measurement)
    with pytest.raises(ProcessFailure, match=r"measure \(first call\) took longer than 10 s") as caught:
        measure(worker, "hang", timeout_s=10)
    assert caught.value.kind is FailureKind.TIMEOUT
    assert isinstance(measure(opened(worker), "none"), Measurement)


def test_a_device_is_free_again_after_a_process_that_was_stopped(worker: ChildProcess) -> None:
    opened(worker)
    with pytest.raises(ProcessFailure, match="stopped by a signal"):
        measure(worker, "stop", timeout_s=3)
    assert isinstance(measure(opened(worker), "none"), Measurement)
