"""The devices of this host: torch's view of each CUDA device joined with NVML's by UUID, and the CPU.

An index names another card in torch than in NVML as soon as the two order them differently or a mask hides one,
so nothing is joined by index.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tunedex.core import host
from tunedex.core.cuda import from_properties, profile_in
from tunedex.core.device import Device, Environment
from tunedex.core.errors import BadInput, CannotRun, DeviceError
from tunedex.tuner.load import contended
from tunedex.tuner.nvml import Board, Nvml, Sample, bare_uuid, nvml_of, open_nvml

SELECTORS = "auto, all, cuda, cuda:N or cpu"

_ORDINAL = re.compile(r"cuda:([0-9]{1,6})")

#: Values of CUDA_VISIBLE_DEVICES that hide every GPU on purpose.
_HIDDEN = frozenset({"", "-1", "none", "void", "nodevfiles"})


@dataclass(frozen=True)
class DetectedDevice:
    """A device of this host.

    ``index`` is its CUDA ordinal in this process, None for the CPU; ``uuid`` is NVML's spelling where NVML knows the
    device; ``notes`` are lines for whoever measures on it.
    """

    device: Device
    index: int | None = None
    uuid: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def selector(self) -> str:
        """What `detect` and torch call it: ``cpu`` or ``cuda:0``."""
        return "cpu" if self.index is None else f"cuda:{self.index}"


def detect(
    selector: str = "auto", *, torch: Any = None, nvml: Callable[[], Nvml | None] = open_nvml
) -> list[DetectedDevice]:
    """The devices that ``selector`` names.

    ``auto`` is the first CUDA device, else the CPU; ``all`` every CUDA device and the CPU; ``cuda`` every CUDA
    device; ``cuda:1`` one; ``cpu`` the CPU, for which no driver is asked. ``torch`` and ``nvml`` stand in for the
    installed modules.

    Raises:
        BadInput: the selector is none of these.
        CannotRun: CUDA devices are asked for and there is none, or none of that number.
        DeviceError: a driver or a GPU is there and cannot be used.
    """
    ordinal = _ORDINAL.fullmatch(selector)
    if selector not in ("auto", "all", "cuda", "cpu") and not ordinal:
        raise BadInput(f"device {selector!r} is unknown; known are {SELECTORS}", field="device")
    cpu = DetectedDevice(host.cpu())
    if selector == "cpu":
        return [cpu]
    known = nvml()  # before torch, which imports the same module, with its warnings
    found = _cuda_devices(torch or importlib.import_module("torch"), known)
    if selector == "all":
        return [*found, cpu]
    if selector == "auto":
        return found[:1] or [cpu]
    if not found:
        raise CannotRun(f"device {selector!r}: there is no CUDA device here; `--device cpu` takes the CPU")
    if ordinal is None:
        return found
    index = int(ordinal[1])
    if index >= len(found):
        raise CannotRun(f"device {selector!r}: there is none; the last is cuda:{len(found) - 1}")
    return [found[index]]


def environment_of(device: Device) -> Environment:
    """The versions of what changes speed on this kind of device: numba on a CPU; driver, CUDA and triton on a GPU."""
    python = ".".join(platform.python_version_tuple()[:2])
    if device.kind == "cpu":
        return Environment(torch=version_of_package("torch"), numba=version_of_package("numba"), python=python)
    nvml = open_nvml()
    torch = importlib.import_module("torch")
    return Environment(
        driver=nvml.driver if nvml else "",
        cuda=torch.version.cuda or "",
        torch=version_of_package("torch"),
        triton=version_of_package("triton"),
        python=python,
    )


def sample(device: Device) -> Sample:
    """The state of ``device`` now; what it does not tell is unknown. Never raises."""
    known = nvml_of(device)
    state = known[0].sample(known[1]) if known else Sample()
    return replace(state, contended=contended(device))


def energy_j(device: Device) -> float | None:
    """The energy that ``device`` has used since its driver was loaded, in joules; None where it does not tell. Never
    raises."""
    known = nvml_of(device)
    return known[0].energy_j(known[1]) if known else None


def _cuda_devices(torch: Any, nvml: Nvml | None) -> list[DetectedDevice]:
    boards = nvml.boards() if nvml else []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            properties = [torch.cuda.get_device_properties(index) for index in range(count)]
        except RuntimeError as error:
            raise DeviceError(f"CUDA does not answer: {_first_line(error)}") from error
    if not properties and not _hidden():
        _refuse_broken(torch, nvml, boards, [_first_line(warning.message) for warning in said])
    return [_joined(index, each, boards) for index, each in enumerate(properties)]


def _refuse_broken(torch: Any, nvml: Nvml | None, boards: Sequence[Board], said: Sequence[str]) -> None:
    """Torch finds no device. Is there none, or is something broken?

    Raises:
        DeviceError: it is broken. ``said`` are torch's warnings.
    """
    if boards or (nvml and nvml.count is None):
        name = (boards[0].name if boards else "") or "a GPU"
        why = said[-1] if said else _unusable(torch, boards)
        raise DeviceError(f"{name} is here but torch cannot use it: {why}; `--device cpu` takes the CPU")
    # Without NVML the word of CUDA counts, and it says nothing on a host that has no driver.
    if fault := next((line for line in said if line.startswith("CUDA initialization")), ""):
        raise DeviceError(f"CUDA does not answer: {fault}; `--device cpu` takes the CPU")


def _joined(index: int, properties: Any, boards: Sequence[Board]) -> DetectedDevice:
    """The device that torch describes, with what NVML adds: attributes, never a part of the key."""
    board = _board_of(index, properties, boards)
    attributes = _told_by_cuda(properties)
    profile = profile_in(properties.name)
    sliced = profile.startswith("mig") or bool(board and board.sliced)
    virtual = profile.startswith("vgpu")
    uuid = bare_uuid(getattr(properties, "uuid", ""))
    uuid = uuid and f"{'MIG' if sliced else 'GPU'}-{uuid}"
    if board:
        attributes |= board.attributes
        virtual = virtual or board.virtual
        if board.profile and not profile:
            attributes["nvml_profile"] = board.profile
        # A slice that NVML does not tell from its card keeps the UUID that CUDA gives it.
        if board.uuid and (not uuid or not sliced or board.card):
            uuid = board.uuid
    if virtual:
        attributes["virtual"] = True
    if uuid:
        attributes["uuid"] = uuid
    notes = [f"cuda:{index} is a virtual GPU: it shares its card, so its timings may be disturbed"] if virtual else []
    return DetectedDevice(from_properties(properties, attributes=attributes), index, uuid or None, tuple(notes))


def _told_by_cuda(properties: Any) -> dict[str, Any]:
    """What newer versions of torch know beside the limits, under NVML's names for it."""
    known = {
        "max_clock_mhz": getattr(properties, "clock_rate", 0) // 1000,
        "max_memory_clock_mhz": getattr(properties, "memory_clock_rate", 0) // 1000,
        "memory_bus_bits": getattr(properties, "memory_bus_width", 0),
    }
    return {name: value for name, value in known.items() if value}


def _board_of(index: int, properties: Any, boards: Sequence[Board]) -> Board | None:
    """NVML's view of a torch device, by UUID, else by PCI address; its card, for a slice that it does not tell."""
    uuid = bare_uuid(getattr(properties, "uuid", ""))
    domain, bus, slot = (getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    address = None if bus is None or slot is None else f"{domain or 0:08x}:{bus:02x}:{slot:02x}.0"
    # A card comes before its slices, which share its address, and with older drivers its UUID too.
    board = next((board for board in boards if uuid and bare_uuid(board.uuid) == uuid), None)
    board = board or next((board for board in boards if address and board.pci == address), None)
    if board is None or not board.sliced or board.card:
        return board
    slices = [each for each in boards if each.card == board.uuid]
    entry, profile = _mask_entry(index), profile_in(properties.name)
    named = [each for each in slices if each.uuid == entry] or [each for each in slices if each.profile == profile]
    return named[0] if len(named) == 1 else board


def _mask_entry(index: int) -> str:
    """What CUDA_VISIBLE_DEVICES calls the device of this ordinal; "" where it does not."""
    entries = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return entries[index].strip() if index < len(entries) else ""


def _hidden() -> bool:
    """CUDA shows what stands before the first entry that names no device."""
    mask = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    return mask.partition(",")[0].strip().lower() in _HIDDEN


def _unusable(torch: Any, boards: Sequence[Board]) -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if mask := os.environ.get("CUDA_VISIBLE_DEVICES"):
        known = ", ".join(board.uuid for board in boards if board.uuid)
        return f"CUDA_VISIBLE_DEVICES={mask} names no device of this host{f', which has {known}' if known else ''}"
    return f"torch {torch.__version__} for CUDA {torch.version.cuda} finds no device"


def version_of_package(package: str) -> str:
    """An installed package's version, the same whether or not it is imported yet; "" where it is absent."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        return str(getattr(importlib.import_module(package), "__version__", ""))
    except ImportError:
        return ""


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0]
