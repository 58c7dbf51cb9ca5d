"""Devices of hosts that are not here: recorded numbers behind a torch and an NVML that answer like the real ones."""

from __future__ import annotations

import types
import warnings
from typing import Any

import pytest

from tunedex.core import host
from tunedex.core.device import GIB, MIB
from tunedex.core.errors import BadInput, CannotRun, DeviceError
from tunedex.tuner import devices, nvml
from tunedex.tuner.devices import detect, environment_of
from tunedex.tuner.nvml import Nvml, Sample, open_nvml

H200 = "11111111-2222-3333-4444-555555555555"
A100 = "aaaaaaaa-2222-3333-4444-555555555555"
SLICE = "99999999-2222-3333-4444-555555555555"


class FakeNvmlError(Exception):
    """As pynvml's: the return code stands in ``value``."""

    def __init__(self, value: int, text: str) -> None:
        super().__init__(text)
        self.value = value


NOT_FOUND = FakeNvmlError(6, "Not Found")
NOT_SUPPORTED = FakeNvmlError(3, "Not Supported")


def fake_nvml(*cards: dict[str, Any], init: Exception | None = None, lacks: tuple[str, ...] = ()) -> Any:
    """A module like pynvml over ``cards``; a card's missing field is not supported, handles are the dicts."""
    everything = [*cards, *(part for card in cards for part in card.get("slices", ()))]

    def initialise() -> None:
        if init:
            raise init

    def field(name: str) -> Any:
        def read(handle: dict[str, Any], *_: Any) -> Any:
            if name not in handle:
                raise NOT_SUPPORTED
            return handle[name]

        return read

    def by_uuid(uuid: str) -> Any:
        found = [item for item in everything if item["uuid"] == uuid]
        if not found:
            raise NOT_FOUND
        return found[0]

    def slice_of(handle: dict[str, Any], index: int) -> Any:
        parts = handle.get("slices", ())
        if index >= len(parts):
            raise NOT_FOUND
        return parts[index]

    module = types.SimpleNamespace(
        NVMLError=FakeNvmlError,
        nvmlInit=initialise,
        nvmlSystemGetDriverVersion=lambda: "580.95.05",
        nvmlDeviceGetCount=lambda: len(cards),
        nvmlDeviceGetHandleByIndex=lambda index: cards[index],
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetUUID=field("uuid"),
        nvmlDeviceGetName=field("name"),
        nvmlDeviceGetPciInfo=lambda handle: types.SimpleNamespace(busId=handle["pci"], pciDeviceId=0x233510DE),
        nvmlDeviceGetEnforcedPowerLimit=field("power_mw"),
        nvmlDeviceGetMaxClockInfo=field("max_clock"),
        nvmlDeviceGetMemoryBusWidth=field("bus"),
        nvmlDeviceGetEccMode=field("ecc"),
        nvmlDeviceGetMigMode=field("mig"),
        nvmlDeviceGetMaxMigDeviceCount=lambda handle: 7,
        nvmlDeviceGetMigDeviceHandleByIndex=slice_of,
        nvmlDeviceGetAttributes=field("counts"),
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle=lambda part: next(c for c in cards if part in c.get("slices", ())),
        nvmlDeviceGetVirtualizationMode=field("virtualization"),
        nvmlDeviceGetClockInfo=field("clock"),
        nvmlDeviceGetTemperature=field("temperature"),
        nvmlDeviceGetCurrentClocksEventReasons=field("reasons"),
    )
    for name in lacks:
        delattr(module, name)
    return module


def board(uuid: str, name: str, pci: str = "00000000:1B:00.0", **fields: Any) -> dict[str, Any]:
    return {"uuid": f"GPU-{uuid}", "name": name, "pci": pci, **fields}


def properties(name: str, uuid: str = H200, **changes: Any) -> Any:
    """What torch reports of an H200, with ``changes``."""
    values = {
        "name": name,
        "major": 9,
        "minor": 0,
        "multi_processor_count": 132,
        "total_memory": 150_110_011_392,
        "L2_cache_size": 62_914_560,
        "shared_memory_per_block_optin": 232_448,
        "uuid": uuid,
        "pci_domain_id": 0,
        "pci_bus_id": 0x1B,
        "pci_device_id": 0,
    }
    return types.SimpleNamespace(**{**values, **changes})


def fake_torch(*visible: Any, cuda: str | None = "13.0", warns: str = "", raises: Exception | None = None) -> Any:
    def get(index: int) -> Any:
        if raises:
            raise raises
        return visible[index]

    def available() -> bool:
        if warns:
            warnings.warn(warns, UserWarning, stacklevel=2)
        return bool(visible)

    return types.SimpleNamespace(
        __version__="2.13.0",
        version=types.SimpleNamespace(cuda=cuda),
        cuda=types.SimpleNamespace(
            is_available=available, device_count=lambda: len(visible), get_device_properties=get
        ),
    )


def find(selector: str, torch: Any, module: Any) -> list[devices.DetectedDevice]:
    return detect(selector, torch=torch, nvml=lambda: open_nvml(module))


def test_an_h200_is_known_by_its_silicon_and_described_by_nvml() -> None:
    module = fake_nvml(board(H200, "NVIDIA H200", power_mw=700_000, max_clock=1980, bus=6144, ecc=[1, 1], mig=[0, 0]))
    (found,) = find("auto", fake_torch(properties("NVIDIA H200")), module)
    assert found.device.key == "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"
    assert found.device.family == "hopper"
    assert (found.index, found.uuid, found.selector, found.notes) == (0, f"GPU-{H200}", "cuda:0", ())
    assert found.device.attributes == {
        "power_limit_w": 700,
        "max_clock_mhz": 1980,
        "max_memory_clock_mhz": 1980,
        "memory_bus_bits": 6144,
        "ecc": True,
        "pci_device_id": "233510de",
        "uuid": f"GPU-{H200}",
    }


def test_torch_and_nvml_are_joined_by_uuid_whatever_their_order() -> None:
    module = fake_nvml(
        board(A100, "NVIDIA A100", "00000000:10:00.0", power_mw=400_000),
        board(H200, "NVIDIA H200", "00000000:1B:00.0", power_mw=700_000),
    )
    a100 = properties("NVIDIA A100", A100, major=8, multi_processor_count=108)
    both = find("cuda", fake_torch(properties("NVIDIA H200"), a100), module)
    assert [(d.device.name, d.device.attributes["power_limit_w"]) for d in both] == [
        ("NVIDIA H200", 700),
        ("NVIDIA A100", 400),
    ]
    (masked,) = find("cuda:0", fake_torch(properties("NVIDIA H200")), module)
    assert masked.device.attributes["power_limit_w"] == 700


def test_without_a_uuid_the_pci_address_joins() -> None:
    module = fake_nvml(
        board(A100, "NVIDIA A100", "00000000:10:00.0", power_mw=400_000),
        board(H200, "NVIDIA H200", "00000000:1B:00.0", power_mw=700_000),
    )
    old = properties("NVIDIA H200")
    del old.uuid
    (found,) = find("auto", fake_torch(old), module)
    assert found.uuid == f"GPU-{H200}"


def test_a_mig_slice_is_never_the_whole_card() -> None:
    part = {"uuid": f"MIG-{SLICE}", "name": "NVIDIA H200 MIG 2g.35gb"}
    module = fake_nvml(board(H200, "NVIDIA H200", mig=[1, 1], power_mw=700_000, slices=[part]))
    own = properties("NVIDIA H200 MIG 2g.35gb", SLICE, multi_processor_count=32, total_memory=35 * GIB)
    (found,) = find("auto", fake_torch(own), module)
    assert found.device.key == "nvidia-sm90-32sm-l2_60m-smem_227k-mem_35g-mig-2g.35gb"
    assert found.uuid == f"MIG-{SLICE}"
    assert found.device.attributes["power_limit_w"] == 700


@pytest.mark.parametrize(
    ("slices", "profile"),
    [
        (
            [{"uuid": f"MIG-{SLICE}", "counts": types.SimpleNamespace(gpuInstanceSliceCount=2, memorySizeMB=35840)}],
            "mig-2g.35gb",
        ),
        ([{"uuid": f"MIG-{SLICE}"}], "mig-unknown"),
        ([], "mig-unknown"),
    ],
)
def test_a_slice_whose_name_does_not_say_so_is_still_a_slice(slices: list[dict[str, Any]], profile: str) -> None:
    module = fake_nvml(board(H200, "NVIDIA H200", mig=[1, 1], slices=slices))
    own = properties("NVIDIA H200", SLICE, multi_processor_count=32, total_memory=35 * GIB)
    (found,) = find("auto", fake_torch(own), module)
    assert found.device.profile == profile
    assert found.device.key.endswith(profile)


@pytest.mark.parametrize("name", ["GRID A100D-20C", "NVIDIA A100D-20C"])
def test_a_vgpu_is_its_own_kind_and_says_that_timings_are_shared(name: str) -> None:
    module = fake_nvml(board(A100, name))
    shared = properties(name, A100, major=8, multi_processor_count=108, total_memory=20 * GIB)
    (found,) = find("auto", fake_torch(shared), module)
    assert found.device.family == "ampere"
    assert found.device.key.endswith("-vgpu-a100d-20c")
    assert found.device.attributes["virtual"] is True
    assert "timings may be disturbed" in found.notes[0]


def test_a_vgpu_that_only_nvml_knows_is_not_merged_with_the_bare_card() -> None:
    module = fake_nvml(board(A100, "NVIDIA A100", virtualization=2))
    (found,) = find("auto", fake_torch(properties("NVIDIA A100", A100)), module)
    assert found.device.key.endswith("-vgpu-unknown")


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


@pytest.mark.parametrize("change", [{"multi_processor_count": 114}, {"minor": 1}, {"total_memory": 80 * GIB}])
def test_unlike_silicon_under_one_name_differs(change: dict[str, Any]) -> None:
    plain, other = (find("auto", fake_torch(properties("GPU", **c)), fake_nvml())[0] for c in ({}, change))
    assert plain.device.key != other.device.key


def test_an_architecture_to_come_is_named_by_its_compute_capability() -> None:
    (found,) = find("auto", fake_torch(properties("NVIDIA X", major=13, minor=0)), fake_nvml())
    assert found.device.family == "sm130"


def test_every_nvml_field_may_be_missing() -> None:
    (found,) = find("auto", fake_torch(properties("NVIDIA H200")), fake_nvml(board(H200, "NVIDIA H200")))
    assert found.device.key == "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"
    assert set(found.device.attributes) == {"pci_device_id", "uuid"}


def test_a_foreign_pynvml_is_tolerated_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    nvml._log_lack.cache_clear()
    lacking = fake_nvml(
        board(H200, "NVIDIA H200"), lacks=("nvmlDeviceGetMigMode", "nvmlDeviceGetEccMode", "nvmlDeviceGetPciInfo")
    )
    for _ in range(2):
        (found,) = find("auto", fake_torch(properties("NVIDIA H200")), lacking)
    assert found.uuid == f"GPU-{H200}"
    assert [r.message for r in caplog.records if "nvmlDeviceGetMigMode" in r.message] == [
        "the installed pynvml has no nvmlDeviceGetMigMode; what it tells stays unknown"
    ]
    assert open_nvml(types.SimpleNamespace(__name__="pynvml")) is None


@pytest.mark.parametrize("selector", ["auto", "all", "cuda", "cuda:0"])
def test_a_broken_nvml_is_an_error_and_never_no_gpu(selector: str) -> None:
    broken = fake_nvml(init=FakeNvmlError(18, "Driver/library version mismatch"))
    with pytest.raises(DeviceError, match="Driver/library version mismatch"):
        find(selector, fake_torch(), broken)


@pytest.mark.parametrize("code", [9, 12])
def test_no_driver_is_no_gpu(code: int) -> None:
    absent = fake_nvml(init=FakeNvmlError(code, "Driver Not Loaded"))
    assert find("auto", fake_torch(cuda=None), absent)[0].device == host.cpu()


@pytest.mark.parametrize(
    ("torch", "words"),
    [
        (fake_torch(cuda=None), "built without CUDA"),
        (fake_torch(warns="The NVIDIA driver on your system is too old"), "too old"),
        (fake_torch(), "finds no device"),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_an_error(torch: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(DeviceError, match=f"NVIDIA H200 is here but torch cannot use it.*{words}"):
        find("auto", torch, fake_nvml(board(H200, "NVIDIA H200")))


@pytest.mark.parametrize("mask", ["", "-1", "NoDevFiles"])
def test_a_gpu_hidden_on_purpose_is_no_gpu(mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    assert find("auto", fake_torch(), fake_nvml(board(H200, "NVIDIA H200")))[0].selector == "cpu"


def test_a_mask_that_names_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(DeviceError, match="CUDA_VISIBLE_DEVICES=7 names no device"):
        find("auto", fake_torch(), fake_nvml(board(H200, "NVIDIA H200")))


def test_a_device_that_does_not_answer_is_an_error() -> None:
    torch = fake_torch(properties("NVIDIA H200"), raises=RuntimeError("CUDA error: system not yet initialized\nmore"))
    with pytest.raises(DeviceError, match=r"CUDA does not answer: CUDA error: system not yet initialized$"):
        find("auto", torch, fake_nvml(board(H200, "NVIDIA H200")))


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


def test_the_cpu_asks_no_driver() -> None:
    broken = fake_nvml(init=FakeNvmlError(18, "Driver/library version mismatch"))
    assert find("cpu", None, broken)[0].device == host.cpu()


def test_the_state_beside_a_measurement() -> None:
    module = fake_nvml(board(H200, "NVIDIA H200", clock=1980, temperature=51, reasons=0x01 | 0x04 | 0x40))
    assert Nvml(module).sample(f"GPU-{H200}") == Sample(1980, 51, "power_cap,hardware_thermal")
    assert Nvml(module).sample("GPU-elsewhere") == Sample()


def test_the_state_of_a_slice_is_its_cards() -> None:
    part = {"uuid": f"MIG-{SLICE}", "name": "NVIDIA H200 MIG 2g.35gb"}
    module = fake_nvml(board(H200, "NVIDIA H200", mig=[1, 1], clock=1500, reasons=0, slices=[part]))
    assert Nvml(module).sample(f"MIG-{SLICE}") == Sample(1500, None, "")


def test_the_state_of_a_cpu_is_unknown() -> None:
    assert devices.sample(host.cpu()) == Sample()


def test_the_environment_of_the_cpu_names_what_changes_its_speed() -> None:
    environment = environment_of(host.cpu())
    assert environment.torch
    assert environment.numba
    assert environment.python.count(".") == 1
    assert (environment.driver, environment.cuda, environment.triton) == ("", "", "")


def test_this_host() -> None:
    found = detect("all")
    assert found[-1].device == host.cpu()
    assert all(item.device.kind == "cuda" for item in found[:-1])
