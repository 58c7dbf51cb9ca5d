"""Devices of hosts that are not here, as `detect` finds them."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import (
    A100,
    FUNCTIONS,
    H100,
    H200,
    NOT_SUPPORTED,
    SLICE,
    UNKNOWN,
    board,
    fake_nvml,
    fake_torch,
    find,
    full_board,
    part_of_h100,
    properties,
    visible,
)

from tunedex.core import host
from tunedex.core.config import Config
from tunedex.core.cuda import from_properties
from tunedex.core.device import GIB, MIB, Device, Environment
from tunedex.core.errors import BadInput, CannotRun
from tunedex.core.measurement import Measurement, Policy
from tunedex.core.problem import Problem
from tunedex.core.row import Row
from tunedex.core.snapshot import Match
from tunedex.db import Store, open_store
from tunedex.kernels.registry import get_kernel
from tunedex.tuner import nvml
from tunedex.tuner.devices import detect, environment_of
from tunedex.tuner.nvml import Sample, bare_uuid, unsteady

H200_KEY = "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"
H100_KEY = "nvidia-sm90-132sm-l2_50m-smem_227k-mem_80g"
SLICE_KEY = "nvidia-sm90-32sm-l2_12m-smem_227k-mem_20g-mig-2g.20gb"
OLD_SLICE = f"MIG-GPU-{H100}/5/0"


def test_an_h200_is_known_by_its_silicon_and_described_by_nvml() -> None:
    (found,) = find("auto", fake_torch(properties("NVIDIA H200")), fake_nvml(full_board()))
    assert found.device.key == H200_KEY
    assert found.device.family == "hopper"
    assert (found.index, found.uuid, found.selector, found.notes) == (0, f"GPU-{H200}", "cuda:0", ())
    assert found.device.attributes == {
        "power_limit_w": 700,
        "max_clock_mhz": 1980,
        "max_memory_clock_mhz": 3201,
        "memory_bus_bits": 6144,
        "ecc": True,
        "pci_device_id": "233510de",
        "uuid": f"GPU-{H200}",
    }


@pytest.mark.parametrize(
    ("mask", "shown"),
    [
        ("0,1", [("NVIDIA H200", 700), ("NVIDIA A100", 400)]),
        ("1", [("NVIDIA A100", 400)]),
        ("1,0", [("NVIDIA A100", 400), ("NVIDIA H200", 700)]),
        (f"GPU-{A100}", [("NVIDIA A100", 400)]),
        ("GPU-1111", [("NVIDIA H200", 700)]),
        ("0,-1,1", [("NVIDIA H200", 700)]),
    ],
)
def test_torch_and_nvml_are_joined_by_uuid_whatever_the_order_and_the_mask(
    mask: str, shown: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    module = fake_nvml(board(A100, "NVIDIA A100", power_mw=400_000), board(H200, "NVIDIA H200", power_mw=700_000))
    a100 = properties("NVIDIA A100", A100, major=8, multi_processor_count=108)
    found = find("cuda", fake_torch(*visible(mask, properties("NVIDIA H200"), a100)), module)
    assert [(d.device.name, d.device.attributes["power_limit_w"]) for d in found] == shown
    assert [d.uuid for d in found] == [f"GPU-{A100 if name.endswith('A100') else H200}" for name, _ in shown]


def test_without_a_uuid_the_pci_address_joins() -> None:
    module = fake_nvml(board(A100, "NVIDIA A100"), board(H200, "NVIDIA H200"))
    old = properties("NVIDIA H200")
    del old.uuid
    (found,) = find("auto", fake_torch(old), module)
    assert found.uuid == f"GPU-{H200}"


def sliced_h100(*uuids: str) -> dict[str, Any]:
    """An H100 in MIG mode whose slices are 2g.20gb, but for the first, which is 3g.40gb."""
    sizes = ["3g.40gb", *["2g.20gb"] * len(uuids)]
    slices = [
        {"uuid": uuid, "name": f"NVIDIA H100 80GB HBM3 MIG {size}"} for uuid, size in zip(uuids, sizes, strict=False)
    ]
    return board(H100, "NVIDIA H100 80GB HBM3", mig=[1, 1], power_mw=700_000, energy_mj=1, slices=slices)


@pytest.mark.parametrize(
    ("mask", "own"),
    [
        ("0", part_of_h100()),
        (f"GPU-{H100}", part_of_h100(identifier=f"GPU-{H100}")),
        (f"MIG-{SLICE}", part_of_h100()),
        # Older drivers name a slice by its card and its place, and CUDA gives it the UUID of its card.
        (OLD_SLICE, part_of_h100(H100, identifier=OLD_SLICE)),
    ],
)
def test_a_mig_slice_is_known_by_its_own_limits_however_the_mask_names_it(
    mask: str, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    uuid = OLD_SLICE if mask == OLD_SLICE else f"MIG-{SLICE}"
    other = f"MIG-GPU-{H100}/3/0" if mask == OLD_SLICE else f"MIG-{A100}"
    module = fake_nvml(board(H200, "NVIDIA H200", power_mw=600_000), sliced_h100(other, uuid))
    (found,) = find("auto", fake_torch(*visible(mask, own)), module)
    assert found.device.key == SLICE_KEY
    assert found.uuid == found.device.attributes["uuid"] == uuid
    assert found.device.attributes["power_limit_w"] == 700


def test_of_two_like_slices_the_mask_tells_which(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"MIG-GPU-{H100}/{place}/0" for place in (3, 5, 6)]
    own = part_of_h100(H100, identifier=names[2])
    module = fake_nvml(sliced_h100(*names))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names[2])
    assert find("auto", fake_torch(own), module)[0].uuid == names[2]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert find("auto", fake_torch(own), module)[0].uuid == f"MIG-{H100}"


def h100(**changes: Any) -> Any:
    """What torch reports of a whole H100 SXM."""
    values = {"name": "NVIDIA H100 80GB HBM3", "total_memory": 80 * GIB, "L2_cache_size": 52_428_800, **changes}
    return properties(values.pop("name"), H100, **values)


@pytest.mark.parametrize(
    ("own", "seen"),
    [
        (part_of_h100(), sliced_h100(f"MIG-{SLICE}")),
        (h100(name="NVIDIA H100 PCIe", multi_processor_count=114), board(H100, "NVIDIA H100 PCIe")),
    ],
    ids=["slice", "PCIe"],
)
def test_an_answer_of_the_whole_card_is_exact_for_no_other_device(
    own: Any, seen: dict[str, Any], tmp_path: Path
) -> None:
    (card,) = find("auto", fake_torch(h100()), fake_nvml(board(H100, "NVIDIA H100 80GB HBM3")))
    (other,) = find("auto", fake_torch(own), fake_nvml(seen))
    assert (card.device.key, card.device.family) == (H100_KEY, other.device.family)
    with open_store(str(tmp_path / "tunedex.db")) as store:
        problem = tune(store, card.device)
        store.register_device(other.device)
        assert store.snapshot(card.device.key).answer(problem).match is Match.EXACT
        assert store.snapshot(other.device.key).answer(problem).match is not Match.EXACT
        assert [line.problems for line in store.devices() if line.device.key == other.device.key] == [0]


COUNTS = types.SimpleNamespace(gpuInstanceSliceCount=2, memorySizeMB=20480)


@pytest.mark.parametrize(
    ("slices", "profile"),
    [
        ([{"uuid": f"MIG-{SLICE}", "counts": COUNTS}], "mig-2g.20gb"),
        ([{"uuid": f"MIG-{SLICE}"}], "mig-unknown"),
        ([], None),
    ],
)
def test_a_slice_whose_name_does_not_say_so_is_told_by_its_counts(
    slices: list[dict[str, Any]], profile: str | None
) -> None:
    module = fake_nvml(board(H100, "NVIDIA H100 80GB HBM3", mig=[1, 1], slices=slices))
    own = part_of_h100(name="NVIDIA H100 80GB HBM3")
    (found,) = find("auto", fake_torch(own), module)
    assert found.device.key == "nvidia-sm90-32sm-l2_12m-smem_227k-mem_20g"
    assert found.uuid == f"MIG-{SLICE}"
    assert found.device.attributes.get("nvml_profile") == profile


@pytest.mark.parametrize(
    ("seen", "own"),
    [
        (board(H200, "NVIDIA H200"), properties("NVIDIA H200")),
        (sliced_h100(f"MIG-{SLICE}"), part_of_h100()),
        (board(H100, "NVIDIA H100 80GB HBM3", mig=[1, 1]), part_of_h100(name="NVIDIA H100 80GB HBM3")),
        (board(A100, "NVIDIA A100", virtualization=2), properties("NVIDIA A100", A100, major=8)),
        (board(A100, "GRID A100D-20C"), properties("GRID A100D-20C", A100, major=8, total_memory=20 * GIB)),
    ],
    ids=["card", "slice", "slice without a name", "virtual without a name", "virtual"],
)
def test_nvml_takes_no_part_in_a_key_since_clients_have_none(seen: dict[str, Any], own: Any) -> None:
    (with_nvml,) = find("auto", fake_torch(own), fake_nvml(seen))
    (without,) = detect("auto", torch=fake_torch(own), nvml=lambda: None)
    assert with_nvml.device.key == without.device.key == from_properties(own).key
    assert bare_uuid(with_nvml.uuid) == bare_uuid(without.uuid)


@pytest.mark.parametrize("name", ["GRID A100D-20C", "NVIDIA A100D-20C"])
def test_a_vgpu_is_its_own_kind_and_says_that_timings_are_shared(name: str) -> None:
    module = fake_nvml(board(A100, name))
    shared = properties(name, A100, major=8, multi_processor_count=108, total_memory=20 * GIB)
    (found,) = find("auto", fake_torch(shared), module)
    assert found.device.family == "ampere"
    assert found.device.key == "nvidia-sm80-108sm-l2_60m-smem_227k-mem_20g-vgpu-a100d-20c"
    assert found.device.attributes["virtual"] is True
    assert "timings may be disturbed" in found.notes[0]


def test_a_vgpu_that_only_nvml_knows_is_flagged() -> None:
    module = fake_nvml(board(A100, "NVIDIA A100", virtualization=2))
    (found,) = find("auto", fake_torch(properties("NVIDIA A100", A100)), module)
    assert found.device.attributes["virtual"] is True
    assert "timings may be disturbed" in found.notes[0]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"name": "Tesla T4"}, {"name": "NVIDIA T4"}),
        ({"name": "NVIDIA GeForce RTX 3090"}, {"name": "nvidia geforce rtx 3090 "}),
        ({"total_memory": 97887 * MIB}, {"total_memory": 97877 * MIB}),
        ({"name": "RTX PRO 6000 Workstation"}, {"name": "RTX PRO 6000 Max-Q Workstation"}),
    ],
)
def test_names_and_reserves_do_not_split_a_device(first: dict[str, Any], second: dict[str, Any]) -> None:
    keys: set[str] = set()
    for change in (first, second):
        given = {"name": "GPU", **change}
        keys.add(find("auto", fake_torch(properties(given.pop("name"), **given)), fake_nvml())[0].device.key)
    assert len(keys) == 1


def test_a_max_q_is_the_same_device_with_its_own_power_limit() -> None:
    found = []
    for name, power_w, mib in (("Workstation", 600, 97_887), ("Max-Q Workstation", 300, 97_877)):
        title = f"NVIDIA RTX PRO 6000 Blackwell {name} Edition"
        own = properties(title, major=12, multi_processor_count=188, total_memory=mib * MIB)
        found += find("auto", fake_torch(own), fake_nvml(board(H200, title, power_mw=power_w * 1000)))
    assert found[0].device.key == found[1].device.key
    assert [each.device.attributes["power_limit_w"] for each in found] == [600, 300]


def test_a_name_that_changes_with_the_driver_leaves_one_device_and_its_rows(tmp_path: Path) -> None:
    turing = {"major": 7, "minor": 5, "multi_processor_count": 40, "total_memory": 15 * GIB}
    old, new = (
        find("auto", fake_torch(properties(name, **turing)), fake_nvml(board(H200, name)))[0].device
        for name in ("Tesla T4", "NVIDIA T4 ")
    )
    with open_store(str(tmp_path / "tunedex.db")) as store:
        problem = tune(store, old)
        store.register_device(new)
        (line,) = store.devices()
        assert line.device.name == "NVIDIA T4"
        assert store.snapshot(new.key).answer(problem).match is Match.EXACT


@pytest.mark.parametrize(
    "change",
    [
        {"multi_processor_count": 114},
        {"minor": 1},
        {"total_memory": 80 * GIB},
        {"L2_cache_size": 48 * MIB},
        {"shared_memory_per_block_optin": 101_376},
    ],
)
def test_unlike_silicon_under_one_name_differs(change: dict[str, Any]) -> None:
    plain, other = (find("auto", fake_torch(properties("GPU", **c)), fake_nvml())[0] for c in ({}, change))
    assert plain.device.key != other.device.key


def test_a_laptop_is_not_the_desktop_card_of_its_name() -> None:
    ada = {"major": 8, "minor": 9, "shared_memory_per_block_optin": 101_376}
    desktop = properties("NVIDIA GeForce RTX 4090", **ada, multi_processor_count=128, total_memory=24 * GIB)
    laptop = properties("NVIDIA GeForce RTX 4090 Laptop GPU", **ada, multi_processor_count=76, total_memory=16 * GIB)
    keys = {find("auto", fake_torch(own), fake_nvml())[0].device.key for own in (desktop, laptop)}
    assert len(keys) == 2


def test_an_architecture_to_come_is_named_by_its_compute_capability() -> None:
    (found,) = find("auto", fake_torch(properties("NVIDIA X", major=13, minor=0)), fake_nvml())
    assert found.device.family == "sm130"


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("how", ["missing", NOT_SUPPORTED, UNKNOWN, AttributeError("no such symbol")], ids=str)
def test_a_function_that_nvml_lacks_or_refuses_changes_no_key(function: str, how: Any) -> None:
    nvml._log_lack.cache_clear()
    broken = {"lacks": (function,)} if how == "missing" else {"fails": {function: how}}
    for cards, own, key, uuid in (
        ([full_board()], properties("NVIDIA H200"), H200_KEY, f"GPU-{H200}"),
        ([sliced_h100(f"MIG-{A100}", f"MIG-{SLICE}")], part_of_h100(), SLICE_KEY, f"MIG-{SLICE}"),
    ):
        (found,) = find("auto", fake_torch(own), fake_nvml(*cards, **broken))
        assert (found.device.key, found.uuid) == (key, uuid)


def test_without_nvml_newer_versions_of_torch_tell_the_clocks() -> None:
    own = properties("NVIDIA H200", clock_rate=1_980_000, memory_clock_rate=3_201_000, memory_bus_width=6144)
    (found,) = detect("auto", torch=fake_torch(own), nvml=lambda: None)
    assert found.device.attributes == {
        "max_clock_mhz": 1980,
        "max_memory_clock_mhz": 3201,
        "memory_bus_bits": 6144,
        "uuid": f"GPU-{H200}",
    }


def test_selectors() -> None:
    two = fake_torch(properties("NVIDIA H200"), properties("NVIDIA H200", A100))
    assert [d.selector for d in find("auto", two, fake_nvml())] == ["cuda:0"]
    assert [d.selector for d in find("cuda", two, fake_nvml())] == ["cuda:0", "cuda:1"]
    assert [d.selector for d in find("all", two, fake_nvml())] == ["cuda:0", "cuda:1", "cpu"]
    assert [d.selector for d in find("cuda:1", two, fake_nvml())] == ["cuda:1"]
    assert [d.selector for d in find("all", fake_torch(), fake_nvml())] == ["cpu"]
    with pytest.raises(CannotRun, match="the last is cuda:1"):
        find("cuda:2", two, fake_nvml())
    with pytest.raises(CannotRun, match="no CUDA device"):
        find("cuda", fake_torch(), fake_nvml())


@pytest.mark.parametrize("selector", ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "0", "CPU", "cuda:0,1", "auto "])
def test_other_selectors_are_refused(selector: str) -> None:
    with pytest.raises(BadInput, match="known are auto, all, cuda, cuda:N or cpu"):
        find(selector, fake_torch(), fake_nvml())


def clocked(*clocks: int | None, throttle: str = "") -> list[Sample]:
    return [Sample(clock, 50, throttle) for clock in clocks]


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (clocked(1980, 1980, 1600, 1600), False),
        (clocked(1980, 1980, 1965, 1950), True),
        (clocked(1980, None, 1600), False),
        (clocked(None, None), True),
        ([], True),
        (clocked(1600, 1600, throttle="power_cap"), True),
        (clocked(1600, 1600, throttle="power_cap,thermal"), True),
        (clocked(1600, 1900, throttle="power_cap,thermal"), False),
        ([Sample(1980, 50, None), Sample(1980, 90, "hardware_slowdown")], False),
    ],
)
def test_times_at_unlike_clocks_cannot_be_compared(samples: list[Sample], expected: bool) -> None:
    assert (unsteady(samples, 0.03) == "") is expected


def test_the_environment_of_the_cpu_names_what_changes_its_speed() -> None:
    environment = environment_of(host.cpu())
    assert environment.torch
    assert environment.numba
    assert environment.python.count(".") == 1
    assert (environment.driver, environment.cuda, environment.triton) == ("", "", "")


def tune(store: Store, device: Device) -> Problem:
    """A problem for which ``device`` has an answer in ``store``."""
    kernel = get_kernel("softmax")
    problem = kernel.signature.problem({"rows": 64, "cols": 64, "dtype": "float32"})
    config = kernel.signature.default(problem, device) or Config("library", {})
    measurement = Measurement(
        time_us=9.0,
        p20_us=9.0,
        p80_us=9.0,
        samples=9,
        policy=Policy.GRAPH_COLD,
        error=0.0,
        lossless=True,
        output_hash="aa",
    )
    store.register_device(device)
    store.register_signatures([kernel.signature])
    environment = Environment(driver="580")
    store.register_environment(environment)
    row = Row(0, config, measurement, kernel.signature.version, environment.key, default_us=9.0, library_us=None)
    store.publish(device.key, {problem: [row]})
    return problem


def test_this_host() -> None:
    found = detect("all")
    assert found[-1].device == host.cpu()
    assert all(item.device.kind == "cuda" for item in found[:-1])
