"""The parts of `tuner selftest`: its problems, what it makes of what it sees, and a bundle that names nobody."""

from __future__ import annotations

import getpass
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunedex.core.config import Config
from tunedex.core.cuda import cuda_device
from tunedex.core.device import GIB, KIB, MIB, Device, Environment
from tunedex.core.errors import BadInput
from tunedex.core.host import cpu
from tunedex.db.records import Ceilings
from tunedex.kernels.base import Kernel
from tunedex.kernels.registry import builtin_kernels
from tunedex.tuner import findings
from tunedex.tuner.bundle import BUNDLE_FORMAT, check_target, cleaned, described, write_bundle
from tunedex.tuner.findings import Status
from tunedex.tuner.numerics import Case, Numerics, Tally, cases_of, problems_for
from tunedex.tuner.nvml import Sample
from tunedex.tuner.probe import Caches, Clocks, Probe, Repeated
from tunedex.tuner.process import ChildProcess
from tunedex.tuner.settings import SETTINGS

UUID = "GPU-6a1f3c2e-1b2d-4c3e-9f80-0123456789ab"


def ada(shared_kib: int = 99, **attributes: object) -> Device:
    return cuda_device(
        name="NVIDIA GeForce RTX 4090",
        compute_capability=(8, 9),
        multiprocessors=128,
        memory_bytes=24 * GIB,
        l2_bytes=72 * MIB,
        shared_memory_bytes=shared_kib * KIB,
        attributes=attributes,
    )


every_kernel = pytest.mark.parametrize("kernel", builtin_kernels().values(), ids=lambda kernel: kernel.name)


@every_kernel
def test_problems_are_of_every_dtype_layout_and_attribute(kernel: Kernel) -> None:
    problems = problems_for(kernel.signature)
    signature = kernel.signature
    assert {p.dtype for p in problems} == set(signature.operands[0].dtypes)
    assert {p.layout for p in problems} == set(signature.layouts)
    for attribute in signature.attributes:
        assert {p.attributes[attribute.name] for p in problems} == set(attribute.choices)
    assert {any(size % 2 for size in p.dims.values()) for p in problems} == {True, False}
    assert len({p.key for p in problems}) == len(problems)


@every_kernel
@pytest.mark.parametrize("device", [cpu(), ada()], ids=lambda device: device.kind)
def test_every_default_and_every_implementation_has_a_case(kernel: Kernel, device: Device) -> None:
    cases, refused = cases_of(kernel, device)
    for problem in problems_for(kernel.signature):
        assert kernel.signature.default(problem, device) in [c.config for c in cases if c.problem == problem]
    here = {i.name for i in kernel.implementations if device.kind in i.kinds}
    assert {case.config.implementation for case in cases} | set(refused) == here
    assert all(case.config.values.get("precision", "ieee") == "ieee" for case in cases)


@pytest.fixture
def child() -> Iterator[ChildProcess]:
    child = ChildProcess(Probe, cpu(), None, start_s=SETTINGS.timeouts.start_s)
    yield child
    child.close()


def numerics(child: ChildProcess, cases: list[Case], seconds: float = 120.0) -> dict[str, Tally]:
    return Numerics(cpu(), child, None, time.monotonic() + seconds).run(cases, lambda case: None)


def case(kernel: Kernel, fault: str, *others: str, rows: int = 8) -> Case:
    problem = kernel.signature.problem({"rows": rows, "cols": 8, "dtype": "float32"})
    configs = [Config("numba", {"fault": each}) for each in (fault, *others)]
    return Case(kernel.name, problem, configs[0], False, tuple(configs[1:]))


def test_a_case_that_ends_the_process_costs_itself_alone(planted: Kernel, child: ChildProcess) -> None:
    faults = ("exit", "none", "wrong_last", "abort", "raise")
    tally = numerics(child, [case(planted, fault) for fault in faults])["numba"]
    assert (tally.passed, tally.lost) == (1, 2)
    assert [(each["config"]["fault"], each["kind"]) for each in tally.failed] == [
        ("exit", "crash"),
        ("wrong_last", "wrong_result"),
        ("abort", "crash"),
    ]
    found = findings.numerics(tally)
    assert found.status is Status.FAILED
    assert found.detail.startswith("3 of 4 configs failed; planted:rows=8,cols=8,dtype=float32: crash, ")
    # Two processes are enough to know; the last case is left.
    assert found.detail.endswith("; 1 not run")


def test_a_config_that_needs_too_much_has_stand_ins(planted: Kernel, child: ChildProcess) -> None:
    assert numerics(child, [case(planted, "limit", "limit", "none", "raise")])["numba"].passed == 1
    (failed,) = numerics(child, [case(planted, "limit", "limit")])["numba"].failed
    assert failed["kind"] == "out_of_resources"


def test_a_problem_that_cannot_be_set_up_fails(planted: Kernel, child: ChildProcess) -> None:
    tally = numerics(child, [case(planted, "none", rows=13), case(planted, "none")])["numba"]
    assert tally.passed == 1
    assert "planted: no reference" in tally.failed[0]["detail"]


def test_what_is_not_reached_in_time_is_skipped(planted: Kernel, child: ChildProcess) -> None:
    tally = numerics(child, [case(planted, "none")], seconds=0.0)["numba"]
    assert tally.unrun == 1
    assert findings.numerics(tally).status is Status.SKIPPED
    assert not child.running


def test_the_probe_times_copies(child: ChildProcess) -> None:
    found = child.call("repeated", timeout_s=60)
    assert min(found.first_us, found.second_us) > 0
    assert found.spread >= 0


OLD_CARD = Device("cuda", "NVIDIA GeForce GTX 1080", 20, 8 * GIB, (6, 1), 2 * MIB, 48 * KIB)


@pytest.mark.parametrize(
    ("found", "status", "words"),
    [
        (findings.identity(ada()), Status.OK, "ada, nvidia-sm89-128sm-l2_72m-smem_99k-mem_24g"),
        (findings.identity(cpu()), Status.OK, cpu().key),
        (findings.limits(ada()), Status.OK, "128 SMs, 99 KiB"),
        (findings.limits(ada(100)), Status.FAILED, "compute capability 8.9 has 99 KiB"),
        (findings.limits(OLD_CARD), Status.OK, "20 SMs, 48 KiB"),
        (findings.limits(Device("cuda", "x", 20, 0, (8, 9), 1, 99 * KIB)), Status.FAILED, "a limit is not known"),
        (findings.limits(cpu()), Status.OK, "cores"),
        (findings.versions(Environment(torch="2", numba="1", python="3.12"), "cpu"), Status.OK, "torch 2"),
        (
            findings.versions(Environment(torch="2", triton="3", cuda="13", python="3.12"), "cuda"),
            Status.FAILED,
            "unknown: driver",
        ),
        (findings.ceilings(Ceilings(4e12, {"bfloat16": 9e14})), Status.OK, "copy 4 TB/s, bfloat16 900 TFLOP/s"),
        (findings.ceilings(Ceilings(4e12, {"bfloat16": float("inf")})), Status.FAILED, "no rate: bfloat16"),
        (findings.ceilings(Ceilings(0.0)), Status.FAILED, "no rate: copy"),
        (findings.state(Sample()), Status.SKIPPED, "neither its clock nor its temperature"),
        (findings.state(Sample(1980, 40, "")), Status.OK, "1980 MHz, 40 C, held back by nothing"),
        (findings.state(Sample(1980, None, "power_cap")), Status.OK, "1980 MHz, ? C, held back by power_cap"),
        (findings.repeats(Repeated(100, 104, 0.01), "cuda"), Status.OK, "a copy in 100 and 104 us"),
        (findings.repeats(Repeated(100, 110, 0.01), "cuda"), Status.FAILED, "10.0% apart, above 5%"),
        (findings.repeats(Repeated(100, 110, 0.01), "cpu"), Status.OK, "spread 1.0%"),
        (findings.clocks(Clocks(100, 101, 99)), Status.OK, "eager 100 us, graph 101 us, events 99 us"),
        (findings.clocks(Clocks(100, 60, 99)), Status.FAILED, "66.7% apart, above 10%"),
        (findings.caches(Caches(10, 6)), Status.OK, "10 us cold and 6 us warm"),
        (findings.caches(Caches(10, 10.2)), Status.OK, ""),
        (findings.caches(Caches(10, 12)), Status.FAILED, "warm is slower than cold"),
        (findings.fault(BadInput("no such thing")), Status.FAILED, "no such thing"),
        (findings.fault(ValueError("odd")), Status.FAILED, "ValueError: odd"),
    ],
)
def test_findings(found: findings.Finding, status: Status, words: str) -> None:
    assert found.status is status, found.detail
    assert words in found.detail


def test_a_device_is_described_without_what_is_one_board_s() -> None:
    device = ada(uuid=UUID, power_limit_w=450, serial="1320921012345", host="box", ecc=False)
    document = described(device)
    assert document["attributes"] == {"power_limit_w": 450, "ecc": False}
    assert document["key"] == device.key


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('File "/home/jane/kernels/mine.py", line 3', 'File "<path>", line 3'),
        ("no such file: /opt/data/x.so: refused", "no such file: <path>: refused"),
        ("~/kernels/mine.py is absent", "<path> is absent"),
        (r"C:\Users\jane\x.dll is absent", "<path> is absent"),
        (f"device {UUID} is lost", "device <uuid> is lost"),
        ("out[0, 1/8]: 3 instead of 4 TB/s and/or 5", "out[0, 1/8]: 3 instead of 4 TB/s and/or 5"),
        ("two\nlines", "two lines"),
    ],
)
def test_free_text_is_cleaned_of_paths_and_uuids(text: str, words: str) -> None:
    assert cleaned(text) == words


def test_free_text_is_cleaned_of_this_user_and_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "Jane Doe"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(getpass, "getuser", lambda: "jdoe")
    monkeypatch.setattr(socket, "gethostname", lambda: "lab7.example.org")
    text = cleaned(f"{home}/project/x.py of JDoe on lab7, that is lab7.example.org, by Jane Doe; jdoes stays")
    assert text == "<path> of <name> on <name>, that is <name>, by <name>; jdoes stays"


def test_only_a_bundle_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "bundle.json"
    check_target(path)
    write_bundle(path, {"format": BUNDLE_FORMAT, "b": float("inf"), "a": 1.0})
    assert path.read_text() == '{"a":1,"b":null,"format":"tunedex-selftest"}\n'
    check_target(path)
    for content in (b"", b"{}", b"[]", b"\xff\xfe", json.dumps({"format": "other"}).encode()):
        path.write_bytes(content)
        with pytest.raises(BadInput, match="is there and is no bundle"):
            check_target(path)
    with pytest.raises(BadInput, match="there is no folder"):
        check_target(tmp_path / "none" / "bundle.json")
    for other in (tmp_path, tmp_path / "link"):
        if other != tmp_path:
            other.symlink_to(tmp_path / "nothing")
        with pytest.raises(BadInput, match=r"is no (bundle|regular file)"):
            check_target(other)
