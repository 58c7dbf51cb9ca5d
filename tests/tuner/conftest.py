"""The planted kernels, found the way any third party's is: by an installed package's entry point."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tunedex.kernels.base import Kernel
from tunedex.kernels.registry import all_kernels
from tunedex.tuner import worker
from tunedex.tuner.settings import SETTINGS

PLANTED = Path(__file__).parent / "planted"


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    """The kernel ``planted``, and ``faults`` beside it, in this process and in those it starts."""
    monkeypatch.syspath_prepend(str(PLANTED))
    monkeypatch.setenv("PYTHONPATH", str(PLANTED))
    all_kernels.cache_clear()
    yield all_kernels()["planted"]
    all_kernels.cache_clear()
    for name in ("planted", "planted_faults", "planted_steps", "planted_triton"):
        sys.modules.pop(name, None)


@pytest.fixture
def steps(planted: Kernel) -> Kernel:
    """The kernel ``steps``: all of its configs are right."""
    return all_kernels()["steps"]


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait before a process is started again that could not be."""
    pauses_s = tuple(0.0 for _ in SETTINGS.worker.start_pauses_s)
    hasty = replace(SETTINGS, worker=replace(SETTINGS.worker, start_pauses_s=pauses_s))
    monkeypatch.setattr(worker, "SETTINGS", hasty)
