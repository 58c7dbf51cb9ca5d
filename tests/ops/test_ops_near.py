"""What calls run that nobody has tuned: a neighbour's config where this kernel can bind it, else the next."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ops_cases import CASES, LIBRARY, accept, running

import tunedex
from tunedex import ops
from tunedex.core import host
from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.measurement import Measurement, Policy
from tunedex.core.row import Row
from tunedex.core.snapshot import Match
from tunedex.db import open_store
from tunedex.kernels.registry import get_kernel

SOFTMAX = CASES[1]
SIGNATURE = get_kernel("softmax").signature


def numba(**values: Any) -> Config:
    default = SIGNATURE.default(SOFTMAX.problem(), host.cpu())
    assert default is not None
    return Config("numba", {**default.values, **values})


def publish(path: Path, times: Mapping[Config, float], *sizes: int, device: Device | None = None) -> None:
    """Publish these times, in microseconds, for so many rows each."""
    device = device or host.cpu()
    measured: dict[str, Any] = {"policy": Policy.EAGER_COLD, "error": 1e-7, "lossless": True, "output_hash": "aa"}
    rows = [
        Row(rank, config, Measurement(time, time, time, 9, **measured), SIGNATURE.version, "e" * 32)
        for rank, (config, time) in enumerate(times.items())
    ]
    with open_store(str(path)) as store:
        store.register_device(device)
        store.register_signatures([SIGNATURE])
        store.publish(device.key, {SOFTMAX.problem(rows=size): rows for size in sizes})


def test_a_neighbours_config_runs_and_is_a_miss(tmp_path: Path) -> None:
    config = numba(rows_per_task=4)
    publish(tmp_path / "mine.db", {config: 10.0, LIBRARY["softmax"]: 30.0}, 3, 9)
    client = tunedex.connect(tmp_path / "mine.db", device="cpu")
    problem = SOFTMAX.problem()
    assert client.candidates(problem).match is Match.NEAR
    operands = SOFTMAX.tensors(problem)
    accept(SOFTMAX, problem, operands, ops.softmax(**operands))
    assert running() == [config]
    assert client.status().misses == 1


def test_what_cannot_be_bound_here_is_passed_over_in_silence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # 64 rows a task are no choice for the 10 rows of this problem; where they were measured, there were more.
    wrong, right = numba(rows_per_task=64), numba(rows_per_task=4)
    publish(tmp_path / "mine.db", {wrong: 10.0, right: 12.0, LIBRARY["softmax"]: 30.0}, 3, 9)
    tunedex.connect(tmp_path / "mine.db", device="cpu")
    problem = SOFTMAX.problem()
    operands = SOFTMAX.tensors(problem)
    with caplog.at_level(logging.WARNING):
        accept(SOFTMAX, problem, operands, ops.softmax(**operands))
    assert running() == [right]
    assert caplog.records == []


def test_where_none_can_be_bound_the_default_runs(tmp_path: Path) -> None:
    publish(tmp_path / "mine.db", {numba(rows_per_task=64): 10.0, numba(nosuch=1): 11.0}, 3, 9)
    tunedex.connect(tmp_path / "mine.db", device="cpu")
    problem = SOFTMAX.problem()
    operands = SOFTMAX.tensors(problem)
    accept(SOFTMAX, problem, operands, ops.softmax(**operands))
    assert running() == [numba()]


def test_a_cpu_of_another_core_count_answers_for_this_one(tmp_path: Path) -> None:
    cores = host.cpu().multiprocessors
    other = Device("cpu", host.cpu().name, cores * 2, 0, vector=host.cpu().vector)
    config = numba(rows_per_task=4)
    publish(tmp_path / "mine.db", {config: 10.0}, 5, device=other)
    client = tunedex.connect(tmp_path / "mine.db", device="cpu")
    problem = SOFTMAX.problem()
    answer = client.answer(problem)
    assert (answer.match, answer.distance, answer.source.device) == (Match.FAMILY, 1.0, other.key)
    operands = SOFTMAX.tensors(problem)
    accept(SOFTMAX, problem, operands, ops.softmax(**operands))
    assert running() == [config]
