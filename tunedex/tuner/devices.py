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
from dataclasses import dataclass
from typing import Any

from tunedex.core import host
from tunedex.core.cuda import from_properties, profile_in
from tunedex.core.device import Device, Environment
from tunedex.core.errors import BadInput, CannotRun, DeviceError
from tunedex.tuner.nvml import Board, Nvml, Sample, bare_uuid, open_nvml

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
    found = _cuda_devices(torch or importlib.import_module("torch"), nvml())
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
    """Clock, temperature and throttling of ``device`` now; unknown where it does not tell. Never raises."""
    uuid = device.attributes.get("uuid")
    if device.kind != "cuda" or not uuid:
        return Sample()
    try:
        nvml = open_nvml()
    except DeviceError:
        return Sample()
    return nvml.sample(uuid) if nvml else Sample()


def _cuda_devices(torch: Any, nvml: Nvml | None) -> list[DetectedDevice]:
    boards = nvml.boards() if nvml else []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            properties = [torch.cuda.get_device_properties(index) for index in range(count)]
        except RuntimeError as error:
            raise DeviceError(f"CUDA does not answer: {_first_line(error)}") from error
    if not properties and boards and not _hidden():
        why = _first_line(said[-1].message) if said else _unusable(torch)
        raise DeviceError(
            f"{boards[0].name or 'a GPU'} is here but torch cannot use it: {why}; `--device cpu` takes the CPU"
        )
    return [_joined(index, each, boards) for index, each in enumerate(properties)]


def _joined(index: int, properties: Any, boards: Sequence[Board]) -> DetectedDevice:
    board = _board_of(properties, boards)
    attributes: dict[str, Any] = {}
    profile = profile_in(properties.name)
    uuid = bare_uuid(getattr(properties, "uuid", "")) or None
    notes: list[str] = []
    if board:
        attributes = dict(board.attributes)
        profile = profile or board.profile
        if not profile and board.sliced:
            profile = "mig-unknown"
        if not profile and board.virtual:
            profile = "vgpu-unknown"
        if not board.sliced or board.profile:
            uuid = board.uuid or uuid
        if board.virtual:
            attributes["virtual"] = True
    if profile.startswith("vgpu"):
        attributes["virtual"] = True
    if uuid:
        attributes["uuid"] = uuid
    if attributes.get("virtual"):
        notes.append(f"cuda:{index} is a virtual GPU ({profile}): it shares its card, so its timings may be disturbed")
    return DetectedDevice(
        from_properties(properties, profile=profile, attributes=attributes), index, uuid, tuple(notes)
    )


def _board_of(properties: Any, boards: Sequence[Board]) -> Board | None:
    """NVML's view of a torch device: by UUID, else by PCI address (the card's, for a slice that NVML does not list)."""
    if uuid := bare_uuid(getattr(properties, "uuid", "")):
        for board in boards:
            if bare_uuid(board.uuid) == uuid:
                return board
    domain, bus, slot = (getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    if bus is None or slot is None:
        return None
    address = f"{domain or 0:08x}:{bus:02x}:{slot:02x}.0"
    return next((board for board in boards if board.pci == address), None)


def _hidden() -> bool:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip().lower() in _HIDDEN


def _unusable(torch: Any) -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if mask := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return f"CUDA_VISIBLE_DEVICES={mask} names no device of this host"
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
