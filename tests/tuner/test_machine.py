"""What a machine has left is read from files; these are of machines that are not here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tunedex.core.host import cores
from tunedex.tuner.machine import Residents, free_memory_bytes, memory_bytes, memory_kills, usable_cores

GIB = 2**30


class Machine:
    """A ``/proc`` and a ``/sys/fs/cgroup`` with 64 GiB of memory, of which 40 are available."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.groups = folder / "proc", folder / "cgroup"
        self.write("proc/meminfo", f"MemTotal: {64 * 2**20} kB\nMemFree: 7 kB\nMemAvailable: {40 * 2**20} kB\n")

    def write(self, name: str, text: str) -> None:
        path = self.proc.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def memory(self) -> tuple[float, float]:
        """The most and the free memory in GiB."""
        return memory_bytes(self.proc, self.groups) / GIB, free_memory_bytes(self.proc, self.groups) / GIB


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


class TestMemory:
    def test_of_a_machine_without_control_groups(self, machine: Machine) -> None:
        assert machine.memory() == (64, 40)

    def test_of_a_container_whose_file_cache_can_be_dropped(self, machine: Machine) -> None:
        machine.write("proc/self/cgroup", "0::/\n")
        machine.write("cgroup/memory.max", f"{16 * GIB}\n")
        machine.write("cgroup/memory.current", f"{14 * GIB}\n")
        machine.write("cgroup/memory.stat", f"anon {5 * GIB}\ninactive_file {8 * GIB}\n")
        assert machine.memory() == (16, 10)

    def test_the_tightest_of_nested_groups_counts(self, machine: Machine) -> None:
        machine.write("proc/self/cgroup", "0::/slurm/job\n")
        machine.write("cgroup/slurm/job/memory.max", "max\n")
        machine.write("cgroup/slurm/job/memory.current", f"{3 * GIB}\n")
        machine.write("cgroup/slurm/memory.max", f"{8 * GIB}\n")
        machine.write("cgroup/slurm/memory.current", f"{7 * GIB}\n")
        assert machine.memory() == (8, 1)

    def test_of_the_older_control_groups_seen_from_inside(self, machine: Machine) -> None:
        machine.write("proc/self/cgroup", "9:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/docker/abc\n")
        machine.write("cgroup/memory/memory.limit_in_bytes", f"{12 * GIB}\n")
        machine.write("cgroup/memory/memory.usage_in_bytes", f"{6 * GIB}\n")
        machine.write("cgroup/memory/memory.stat", f"total_inactive_file {GIB}\n")
        assert machine.memory() == (12, 7)

    def test_a_limit_that_is_none(self, machine: Machine) -> None:
        machine.write("proc/self/cgroup", "4:memory:/\n")
        machine.write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
        machine.write("cgroup/memory/memory.usage_in_bytes", f"{50 * GIB}\n")
        assert machine.memory() == (64, 40)

    def test_a_container_over_its_limit_has_none_free(self, machine: Machine) -> None:
        machine.write("proc/self/cgroup", "0::/\n")
        machine.write("cgroup/memory.max", f"{GIB}\n")
        machine.write("cgroup/memory.current", f"{2 * GIB}\n")
        assert machine.memory() == (1, 0)

    def test_where_nothing_can_be_read(self, tmp_path: Path) -> None:
        assert memory_bytes(tmp_path, tmp_path) == free_memory_bytes(tmp_path, tmp_path) == 8 * GIB
        assert memory_kills(tmp_path) == 0

    def test_of_this_machine(self) -> None:
        assert 0 < free_memory_bytes() <= memory_bytes()


class TestCores:
    @pytest.mark.parametrize(("quota", "most"), [("150000 100000", 1), ("max 100000", None), ("50000 100000", 1)])
    def test_a_quota_bounds_them(self, machine: Machine, quota: str, most: int | None) -> None:
        machine.write("proc/self/cgroup", "0::/\n")
        machine.write("cgroup/cpu.max", f"{quota}\n")
        assert usable_cores(machine.proc, machine.groups) == (most or cores())

    @pytest.mark.parametrize(("quota", "most"), [("100000", 1), ("-1", None)])
    def test_a_quota_of_the_older_control_groups(self, machine: Machine, quota: str, most: int | None) -> None:
        machine.write("proc/self/cgroup", "1:cpu:/\n")
        machine.write("cgroup/cpu/cpu.cfs_quota_us", f"{quota}\n")
        machine.write("cgroup/cpu/cpu.cfs_period_us", "100000\n")
        assert usable_cores(machine.proc, machine.groups) == (most or cores())


class TestProcesses:
    def test_a_group_is_as_large_as_its_members(self, machine: Machine) -> None:
        for process, group, pages in ((10, 10, 3), (11, 10, 4), (12, 12, 5)):
            fields = ["R", "1", str(group), str(group), *["0"] * 17, str(pages), "0"]
            machine.write(f"proc/{process}/stat", f"{process} (a (b) c) {' '.join(fields)}\n")
        found = Residents(fresh_s=60, proc=machine.proc)
        page = os.sysconf("SC_PAGE_SIZE")
        assert [found.bytes_of(group) for group in (10, 12, 13)] == [7 * page, 5 * page, 0]

    def test_this_process_s_own_group(self) -> None:
        assert Residents(fresh_s=0).bytes_of(os.getpgrp()) > 2**20

    def test_kills_for_memory_are_counted(self, machine: Machine) -> None:
        machine.write("proc/vmstat", "pgfault 9\noom_kill 3\n")
        assert memory_kills(machine.proc) == 3
