"""Somebody else on the device: seen by its work, whatever its process is called."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import H200, NOT_FOUND, NOT_SUPPORTED, SLICE, busy, fake_nvml, full_board, utilisation

from tunedex.core import host
from tunedex.core.device import Device
from tunedex.tuner import load, nvml
from tunedex.tuner.devices import sample
from tunedex.tuner.load import CpuLoad, GpuLoad, Idle, LoadWatch
from tunedex.tuner.nvml import Nvml
from tunedex.tuner.settings import SETTINGS

UUID = f"GPU-{H200}"
OURS = f"p{os.getpid()}"

#: A process that computes, one that holds memory, a display server.
BURNER, NOTEBOOK, DISPLAY = {"p71": 95}, {"p72": 0}, {"p73": 4}


def watched(*answers: Any, idle: bool = True, rates: int = 0) -> list[bool | None]:
    """What a watch says, after each of ``answers`` of NVML; the first is of when it began, if ``idle``."""
    given = iter(answers)
    module = fake_nvml(full_board(processes=given, rates=utilisation(rates)))
    seen = GpuLoad.seen_idle(Nvml(module), UUID) if idle else Idle()
    look = GpuLoad(Nvml(module), UUID, seen)
    return [look() for _ in range(len(answers) - idle)]


def test_where_our_process_is_seen_any_other_that_computes_is_load() -> None:
    ours = {OURS: 90}
    assert watched(
        NOT_FOUND,
        busy(**ours),
        busy(**ours, **NOTEBOOK, **DISPLAY),
        busy(**ours, **BURNER),
        busy(**ours),
    ) == [False, False, True, False]  # fmt: skip


def test_where_pids_are_of_another_namespace_one_of_two_that_compute_is_somebody_else() -> None:
    ours = {"p4001": 90}
    assert watched(NOT_FOUND, busy(**ours), busy(**ours, **NOTEBOOK, **DISPLAY), busy(**ours, **BURNER)) == [
        False,
        False,
        True,
    ]


def test_who_computed_while_we_did_not_is_somebody_else() -> None:
    assert watched(busy(**BURNER), busy(**BURNER), busy(p4001=90)) == [True, False]


def test_a_driver_that_hides_processes_is_believed_in_what_it_said_while_we_were_idle() -> None:
    for hidden in (NOT_FOUND, NOT_SUPPORTED):
        assert watched(hidden, hidden, hidden, rates=0) == [None, None]
        assert watched(hidden, hidden, hidden, rates=60) == [True, True]
        assert watched(hidden, idle=False, rates=60) == [None]


def test_of_a_slice_nothing_is_known() -> None:
    card = full_board(mig=[1, 1], slices=[{"uuid": f"MIG-{SLICE}", "name": "NVIDIA H200 MIG 2g.35gb"}])
    idle = GpuLoad.seen_idle(Nvml(fake_nvml(card)), f"MIG-{SLICE}")
    assert idle == Idle()
    assert GpuLoad(Nvml(fake_nvml(card)), f"MIG-{SLICE}", idle)() is None


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_watches", {})
    monkeypatch.setattr(nvml, "_opened", None)


@pytest.mark.usefixtures("fresh")
def test_the_sample_beside_a_measurement_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = fake_nvml(full_board(processes=iter([NOT_FOUND, busy(**{OURS: 90}, **BURNER)])))
    monkeypatch.setitem(sys.modules, "pynvml", module)
    device = replace(Device.from_key("nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"), attributes={"uuid": UUID})
    load.watch(device, load.seen_idle(device))
    first = sample(device)
    assert (first.clock_mhz, first.contended) == (1980, True)
    # NVML has nothing more to give: soon after a look, the answer is the look's.
    assert sample(device) == first


@pytest.mark.usefixtures("fresh")
def test_a_look_is_taken_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = itertools.cycle([False, True])
    monkeypatch.setattr(load, "_look_at", lambda device, idle: lambda: next(answers))
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    watch = LoadWatch(host.cpu())
    assert [watch.contended() for _ in range(3)] == [False] * 3
    now += SETTINGS.watching.load_every_s
    assert watch.contended() is True


@pytest.mark.usefixtures("fresh")
def test_a_device_that_nobody_can_ask_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert load.contended(Device.from_key("nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g")) is None


class Counters:
    """The counters of a host with the cores of this one; each step is a second."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.own_s = folder, 0.0
        self.cores = {core: [0] * 10 for core in os.sched_getaffinity(0)}
        self.parent_ticks = 0
        monkeypatch.setattr(time, "process_time", lambda: self.own_s)
        (folder / str(os.getppid())).mkdir(parents=True)
        self.step()

    def step(self, *, ours: float = 0.0, parents: float = 0.0, others: float = 0.0, stolen: float = 0.0) -> None:
        """A second of each core passes, of which the shares given were worked."""
        tick = os.sysconf("SC_CLK_TCK")
        for counts in self.cores.values():
            counts[0] += round(tick * (ours + parents + others))
            counts[7] += round(tick * stolen)
            counts[3] += round(tick * (1 - ours - parents - others - stolen))
        self.own_s += ours * len(self.cores)
        self.parent_ticks += round(parents * len(self.cores) * tick)
        lines = [f"cpu{core} {' '.join(map(str, counts))}" for core, counts in self.cores.items()]
        (self.folder / "stat").write_text("\n".join(["cpu 1 2 3", *lines, "cpu9999 7 7 7 7 7 7 7 7 7 7", "intr 5"]))
        (self.folder / str(os.getppid()) / "stat").write_text(f"1 (a) b) S {'0 ' * 10}{self.parent_ticks} 0 0 0")


@pytest.fixture
def counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counters:
    return Counters(tmp_path / "proc", monkeypatch)


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        ({}, False),
        ({"ours": 1.0}, False),
        ({"ours": 0.5, "parents": 0.5}, False),
        ({"ours": 0.5, "others": 0.05}, False),
        ({"ours": 0.5, "others": 0.5}, True),
        ({"others": 1.0}, True),
        ({"ours": 0.5, "stolen": 0.5}, True),
    ],
)
def test_on_a_cpu_what_others_work_is_load(work: dict[str, float], expected: bool, counters: Counters) -> None:
    look = CpuLoad(proc=counters.folder)
    counters.step(**work)
    assert look() is expected


def test_a_cpus_load_is_of_the_time_since_the_last_look(counters: Counters) -> None:
    look = CpuLoad(proc=counters.folder)
    assert look() is None
    counters.step(others=1.0)
    assert [look(), look()] == [True, True]
    counters.step(ours=1.0)
    assert look() is False


def test_counters_that_stand_still_or_are_not_there_say_nothing(counters: Counters, tmp_path: Path) -> None:
    look = CpuLoad(proc=counters.folder)
    assert [look(), look()] == [None, None]
    for text in ("", "cpu0", f"cpu{min(counters.cores)} a b"):
        (counters.folder / "stat").write_text(text)
        assert look() is None
    assert CpuLoad(proc=tmp_path / "nowhere")() is None


@pytest.mark.skipif(sys.platform != "linux", reason="the counters are Linux's")
def test_a_process_that_burns_this_cpu_is_seen() -> None:
    look = CpuLoad()
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        deadline = time.monotonic() + 60
        while look() is not True and time.monotonic() < deadline:
            time.sleep(0.2)
        assert look() is True
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
