"""Hosts that are not here: recorded numbers behind an NVML and a torch that answer like the real ones."""

from __future__ import annotations

import time
import types
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from tunedex.core.device import GIB
from tunedex.tuner.devices import DetectedDevice, detect
from tunedex.tuner.nvml import open_nvml

H200 = "11111111-2222-3333-4444-555555555555"
H100 = "11112222-2222-3333-4444-555555555555"
A100 = "aaaaaaaa-2222-3333-4444-555555555555"
SLICE = "99999999-2222-3333-4444-555555555555"

#: An address for each, in NVML's order.
PCI = {A100: 0x10, H200: 0x1B, H100: 0x2A}


class FakeNvmlError(Exception):
    """As pynvml's: the return code stands in ``value``."""

    def __init__(self, value: int, text: str) -> None:
        super().__init__(text)
        self.value = value


NOT_FOUND = FakeNvmlError(6, "Not Found")
NOT_SUPPORTED = FakeNvmlError(3, "Not Supported")
UNKNOWN = FakeNvmlError(999, "Unknown Error")
VERSION_MISMATCH = FakeNvmlError(18, "RM has detected an NVML/RM version mismatch.")


def fake_nvml(
    *cards: dict[str, Any],
    init: Exception | None = None,
    lacks: tuple[str, ...] = (),
    fails: Mapping[str, Exception] | None = None,
) -> Any:
    """A module like pynvml over ``cards``, less the functions that it ``lacks``, and with those raising that ``fails``
    names. Handles are the dicts; a field that a card has not is not supported; one that is an iterator gives its next
    value at each call, and one that is an exception is raised."""
    everything = [*cards, *(part for card in cards for part in card.get("slices", ()))]

    def initialise() -> None:
        if init:
            raise init

    def field(name: str) -> Any:
        def read(handle: dict[str, Any], *_: Any) -> Any:
            value = handle.get(name, NOT_SUPPORTED)
            if isinstance(value, Iterator):
                value = next(value)
            if isinstance(value, Exception):
                raise value
            return value

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

    def max_clock(handle: dict[str, Any], kind: int) -> Any:
        return field("max_memory_clock" if kind == 2 else "max_clock")(handle)

    functions: dict[str, Any] = {
        "nvmlInit": initialise,
        "nvmlSystemGetDriverVersion": lambda: "580.95.05",
        "nvmlDeviceGetCount": lambda: len(cards),
        "nvmlDeviceGetHandleByIndex": lambda index: cards[index],
        "nvmlDeviceGetHandleByUUID": by_uuid,
        "nvmlDeviceGetUUID": field("uuid"),
        "nvmlDeviceGetName": field("name"),
        "nvmlDeviceGetPciInfo": lambda handle: types.SimpleNamespace(busId=handle["pci"], pciDeviceId=0x233510DE),
        "nvmlDeviceGetEnforcedPowerLimit": field("power_mw"),
        "nvmlDeviceGetMaxClockInfo": max_clock,
        "nvmlDeviceGetMemoryBusWidth": field("bus"),
        "nvmlDeviceGetEccMode": field("ecc"),
        "nvmlDeviceGetMigMode": field("mig"),
        "nvmlDeviceGetMaxMigDeviceCount": lambda handle: 7,
        "nvmlDeviceGetMigDeviceHandleByIndex": slice_of,
        "nvmlDeviceGetAttributes": field("counts"),
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": lambda part: next(
            card for card in cards if part in card.get("slices", ())
        ),
        "nvmlDeviceGetVirtualizationMode": field("virtualization"),
        "nvmlDeviceGetClockInfo": field("clock"),
        "nvmlDeviceGetTemperature": field("temperature"),
        "nvmlDeviceGetCurrentClocksEventReasons": field("reasons"),
        "nvmlDeviceGetCurrentClocksThrottleReasons": field("old_reasons"),
        "nvmlDeviceGetTotalEnergyConsumption": field("energy_mj"),
        "nvmlDeviceGetUtilizationRates": field("rates"),
        "nvmlDeviceGetProcessUtilization": field("processes"),
    }

    def failing(error: Exception) -> Any:
        def call(*_: Any) -> Any:
            raise error

        return call

    functions |= {name: failing(error) for name, error in (fails or {}).items()}
    return types.SimpleNamespace(
        NVMLError=FakeNvmlError, **{name: call for name, call in functions.items() if name not in lacks}
    )


#: Every function that tells something of a device or its driver.
FUNCTIONS = tuple(name for name in vars(fake_nvml()) if name.startswith(("nvmlDevice", "nvmlSystem")))


def board(uuid: str, name: str, pci: str = "", **fields: Any) -> dict[str, Any]:
    """A card as NVML sees it."""
    return {"uuid": f"GPU-{uuid}", "name": name, "pci": pci or f"00000000:{PCI[uuid]:02X}:00.0", **fields}


def full_board(**changes: Any) -> dict[str, Any]:
    """An H200 of which NVML tells everything."""
    fields = {
        "power_mw": 700_000,
        "max_clock": 1980,
        "max_memory_clock": 3201,
        "bus": 6144,
        "ecc": [1, 1],
        "mig": [0, 0],
        "virtualization": 0,
        "clock": 1980,
        "temperature": 51,
        "reasons": 0,
        "energy_mj": 1_234_500,
        "rates": utilisation(0),
        "processes": NOT_FOUND,
    }
    return board(H200, "NVIDIA H200", **{**fields, **changes})


def utilisation(percent: int) -> Any:
    """What nvmlDeviceGetUtilizationRates answers."""
    return types.SimpleNamespace(gpu=percent, memory=percent)


def busy(age_s: float = 0.1, /, **shares: int) -> list[Any]:
    """What nvmlDeviceGetProcessUtilization answers: ``p123=90`` is process 123 with 90 % of the SMs, ``age_s`` ago."""
    when = time.time_ns() // 1000 - round(age_s * 1e6)
    return [types.SimpleNamespace(pid=int(p[1:]), timeStamp=when, smUtil=share) for p, share in shares.items()]


def properties(name: str, uuid: str = H200, **changes: Any) -> Any:
    """What torch reports of an H200, with ``changes``. ``identifier`` is what a mask calls it."""
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
        "pci_bus_id": PCI.get(uuid, PCI[H200]),
        "pci_device_id": 0,
        "identifier": f"GPU-{uuid}",
    }
    return types.SimpleNamespace(**{**values, **changes})


def part_of_h100(uuid: str = SLICE, identifier: str = "", **changes: Any) -> Any:
    """What torch reports of a 2g.20gb slice of an H100."""
    values = {
        "multi_processor_count": 32,
        "total_memory": 20 * GIB,
        "L2_cache_size": 13_107_200,
        "pci_bus_id": PCI[H100],
        "identifier": identifier or f"MIG-{uuid}",
    }
    return properties(changes.pop("name", "NVIDIA H100 80GB HBM3 MIG 2g.20gb"), uuid, **{**values, **changes})


def visible(mask: str, *devices: Any) -> list[Any]:
    """Those of ``devices``, in CUDA's order, that CUDA shows under the mask: what stands before the first entry that
    names none, or more than one."""
    shown: list[Any] = []
    for entry in mask.split(","):
        if entry.startswith(("GPU-", "MIG-")):
            named = [device for device in devices if device.identifier.startswith(entry)]
        else:
            named = [devices[int(entry)]] if entry.isdigit() and int(entry) < len(devices) else []
        if len(named) != 1:
            break
        shown += named
    return shown


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


def find(selector: str, torch: Any, module: Any) -> list[DetectedDevice]:
    """`detect` on such a host."""
    return detect(selector, torch=torch, nvml=lambda: open_nvml(module))
