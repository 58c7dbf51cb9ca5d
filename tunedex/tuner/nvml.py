"""What NVML knows of the GPUs of this host. The one place that calls it.

Every field is optional: a function that the installed module lacks, or that the device does not support, leaves
its field unknown. Only a driver that does not answer at all is an error, because it is not the same as no GPU.
"""

from __future__ import annotations

import importlib
import logging
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tunedex.core.cuda import profile_in
from tunedex.core.device import Device
from tunedex.core.errors import DeviceError

log = logging.getLogger(__name__)

#: NVML's return codes for a host with no NVIDIA driver: DRIVER_NOT_LOADED and LIBRARY_NOT_FOUND.
_NO_DRIVER = frozenset({9, 12})
#: What it answers where there is nothing to list: SUCCESS, as an error of the module's, and NOT_FOUND.
_NOTHING = frozenset({0, 6})

_VIRTUALISED = 2  # NVML_GPU_VIRTUALIZATION_MODE_VGPU
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_TEMPERATURE_GPU = 0

#: The reasons for a reduced clock, by NVML's bit. Idle and application clocks slow nothing down by themselves.
_THROTTLE = {
    0x04: "power_cap",
    0x08: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
}

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Board:
    """A GPU, or a slice of one, as NVML sees it.

    ``pci`` is the bus address, a slice's being that of its card; ``profile`` is ``mig-...`` or ``vgpu-...`` and ""
    for a whole card; ``sliced`` says that the card is divided by MIG, ``card`` is the UUID of a slice's card.
    ``attributes`` hold what is known of power limit (W), largest clocks (MHz), memory bus (bits), ECC and PCI device
    id.
    """

    uuid: str
    name: str
    pci: str = ""
    profile: str = ""
    sliced: bool = False
    card: str = ""
    virtual: bool = False
    attributes: dict[str, Any] = field(default_factory=dict, compare=False, hash=False)


@dataclass(frozen=True)
class Sample:
    """The state of a device beside a measurement: SM clock in MHz, temperature in °C, reasons of throttling, and
    whether other work runs on it. None where the device does not tell, and an empty ``throttle`` where nothing holds
    it back."""

    clock_mhz: int | None = None
    temperature_c: int | None = None
    throttle: str | None = None
    contended: bool | None = None


#: Reasons of throttling that a device under steady load also shows: they hold all configs back alike.
_STEADY_REASONS = frozenset({"power_cap", "sync_boost"})


def unsteady(samples: Sequence[Sample], share: float) -> str:
    """What made a device unsteady during ``samples``; empty where nothing did.

    Its SM clocks lie within ``share`` of the highest, or are not told. Those that the power limit moves are steady too:
    they follow what runs, and so would they tomorrow. So is a device at its thermal limit whose clocks stay where they
    are, the everyday state of many. Whatever else holds it back does not.
    """
    clocks = [sample.clock_mhz for sample in samples if sample.clock_mhz]
    reasons = {reason for sample in samples for reason in (sample.throttle or "").split(",") if reason}
    alike = bool(clocks) and min(clocks) >= (1 - share) * max(clocks)
    if others := sorted(reasons - _STEADY_REASONS - ({"thermal"} if alike else set())):
        return f"throttling ({', '.join(others)})"
    if alike or not clocks or "power_cap" in reasons:
        return ""
    return f"an SM clock between {min(clocks)} and {max(clocks)} MHz"


class Nvml:
    """NVML, initialised. ``module`` is ``pynvml``, or whatever answers like it."""

    def __init__(self, module: Any) -> None:
        self._module = module

    @property
    def driver(self) -> str:
        """The driver's version, "" where unknown."""
        return _text(self._ask("nvmlSystemGetDriverVersion"))

    @property
    def count(self) -> int | None:
        """How many GPUs there are, slices not counted; None where it does not tell."""
        return self._number("nvmlDeviceGetCount")

    def boards(self) -> list[Board]:
        """Every GPU, each followed by its MIG slices."""
        found: list[Board] = []
        for index in range(self.count or 0):
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                continue
            card = self._card(handle)
            found += [card, *self._slices(handle, card)]
        return found

    def sample(self, uuid: str) -> Sample:
        """The state of the device of this UUID now; empty where it is not found."""
        handle = self._handle(uuid)
        if handle is None:
            return Sample()
        return Sample(
            clock_mhz=self._number("nvmlDeviceGetClockInfo", handle, _CLOCK_SM),
            temperature_c=self._number("nvmlDeviceGetTemperature", handle, _TEMPERATURE_GPU),
            throttle=self._throttle(handle),
        )

    def energy_j(self, uuid: str) -> float | None:
        """What the device of this UUID has used since its driver was loaded, in joules; None where it does not tell.
        A slice does not: the counter is its card's."""
        handle = self._whole(uuid)
        millijoules = None if handle is None else self._number("nvmlDeviceGetTotalEnergyConsumption", handle)
        return None if millijoules is None else millijoules / 1e3

    def busy_percent(self, uuid: str) -> int | None:
        """The share of time, over up to the last second, in which anything ran on the device of this UUID; None where
        it does not tell, as a slice does not."""
        handle = self._whole(uuid)
        rates = None if handle is None else self._ask("nvmlDeviceGetUtilizationRates", handle)
        share = getattr(rates, "gpu", None)
        return share if isinstance(share, int) else None

    def processes(self, uuid: str, window_s: float) -> Mapping[int, int] | None:
        """The processes that computed on the device of this UUID in the last ``window_s``: the largest share of the
        SMs, in percent, by process id; None where it does not tell, as a slice does not.

        The ids are often those of the host, whatever this process calls itself, and so no way to tell our own.
        """
        handle = self._whole(uuid)
        since_us = time.time_ns() // 1000 - round(window_s * 1e6)
        if handle is None:
            return None
        samples = self._ask("nvmlDeviceGetProcessUtilization", handle, since_us, nothing=())
        if not isinstance(samples, list | tuple):
            return None
        shares: dict[int, int] = {}
        for one in samples:
            # Some drivers fill what they do not know with older samples and with shares beyond 100.
            if one.pid and one.timeStamp >= since_us and one.smUtil <= 100:
                shares[one.pid] = max(one.smUtil, shares.get(one.pid, 0))
        return shares

    def _whole(self, uuid: str) -> Any:
        """The handle of a whole card; None for a slice, and for a card that is sliced."""
        handle = None if uuid.startswith("MIG-") else self._handle(uuid)
        return None if handle is None or self._sliced(handle) else handle

    def _sliced(self, handle: Any) -> bool:
        return bool(self._current("nvmlDeviceGetMigMode", handle))

    def _handle(self, uuid: str) -> Any:
        """The handle by UUID; clocks and temperature belong to the card, so a slice gives its card's handle."""
        if uuid.startswith("MIG-"):
            handle = self._ask("nvmlDeviceGetHandleByUUID", uuid)
            return self._ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) if handle is not None else None
        return self._ask("nvmlDeviceGetHandleByUUID", uuid)

    def _card(self, handle: Any) -> Board:
        name = _text(self._ask("nvmlDeviceGetName", handle))
        pci = self._ask("nvmlDeviceGetPciInfo", handle)
        power = self._number("nvmlDeviceGetEnforcedPowerLimit", handle)
        device_id = getattr(pci, "pciDeviceId", None)
        known = {
            "power_limit_w": power // 1000 if power is not None else None,
            "max_clock_mhz": self._number("nvmlDeviceGetMaxClockInfo", handle, _CLOCK_SM),
            "max_memory_clock_mhz": self._number("nvmlDeviceGetMaxClockInfo", handle, _CLOCK_MEMORY),
            "memory_bus_bits": self._number("nvmlDeviceGetMemoryBusWidth", handle),
            "ecc": self._current("nvmlDeviceGetEccMode", handle),
            "pci_device_id": f"{device_id:08x}" if isinstance(device_id, int) else None,
        }
        profile = profile_in(name)
        return Board(
            uuid=_text(self._ask("nvmlDeviceGetUUID", handle)),
            name=name,
            pci=_text(getattr(pci, "busId", "")).lower(),
            profile=profile,
            sliced=self._sliced(handle),
            virtual=profile.startswith("vgpu") or self._ask("nvmlDeviceGetVirtualizationMode", handle) == _VIRTUALISED,
            attributes={name: value for name, value in known.items() if value is not None},
        )

    def _slices(self, handle: Any, card: Board) -> Iterator[Board]:
        if not card.sliced:
            return
        for index in range(self._number("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            part = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
            if part is None:
                continue
            name = _text(self._ask("nvmlDeviceGetName", part))
            yield Board(
                uuid=_text(self._ask("nvmlDeviceGetUUID", part)),
                name=name,
                pci=card.pci,
                profile=profile_in(name) or self._profile(part),
                sliced=True,
                card=card.uuid,
                virtual=card.virtual,
                attributes=card.attributes,
            )

    def _profile(self, part: Any) -> str:
        """A slice's profile from its counts, for drivers whose name of it does not say."""
        counts = self._ask("nvmlDeviceGetAttributes", part)
        slices = getattr(counts, "gpuInstanceSliceCount", None)
        memory_mib = getattr(counts, "memorySizeMB", None)
        if not (isinstance(slices, int) and isinstance(memory_mib, int) and slices and memory_mib):
            return "mig-unknown"
        return f"mig-{slices}g.{round(memory_mib / 1024)}gb"

    def _throttle(self, handle: Any) -> str | None:
        bits = self._number("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:  # the name before driver 535
            bits = self._number("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        if bits is None:
            return None
        return ",".join(reason for bit, reason in _THROTTLE.items() if bits & bit)

    def _number(self, function: str, *arguments: Any) -> int | None:
        """What ``function`` counts; None also where a module that is not NVIDIA's answers something else."""
        value = self._ask(function, *arguments)
        return value if isinstance(value, int) else None

    def _current(self, function: str, handle: Any) -> bool | None:
        """Whether a mode is on now, of which ``function`` tells the current state and the pending one."""
        states = self._ask(function, handle)
        return bool(states[0]) if isinstance(states, list | tuple) and states else None

    def _ask(self, function: str, *arguments: Any, nothing: Any = None) -> Any:
        """What ``function`` returns; None where the module lacks it or NVML refuses, and ``nothing`` where it says that
        there is nothing."""
        call = getattr(self._module, function, None)
        if call is None:
            _log_lack(function)
            return None
        try:
            return call(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in a module that may be a foreign one
            log.debug("%s: %s", function, error)
            return nothing if getattr(error, "value", None) in _NOTHING else None


def open_nvml(module: Any = None) -> Nvml | None:
    """NVML; None on a host with no NVIDIA driver, or where no module for it is installed.

    Raises:
        DeviceError: there is a driver and it does not answer.
    """
    global _opened
    if module is not None:
        return _open(module)
    # Only success is kept: a driver that is away now, in an upgrade say, may be back at the next call.
    if _opened is None:
        with warnings.catch_warnings():
            # A package that only redirects to nvidia-ml-py warns at each import; that is nothing to tell the user.
            warnings.simplefilter("ignore")
            try:
                module = importlib.import_module("pynvml")
            except ImportError:
                return None
        _opened = _open(module)
    return _opened


_opened: Nvml | None = None


def nvml_of(device: Device) -> tuple[Nvml, str] | None:
    """NVML and the UUID by which it knows ``device``; None where nobody knows it. Never raises."""
    uuid = device.attributes.get("uuid")
    if device.kind != "cuda" or not uuid:
        return None
    try:
        nvml = open_nvml()
    except DeviceError:
        return None
    return (nvml, uuid) if nvml else None


def _open(module: Any) -> Nvml | None:
    init: Callable[[], None] | None = getattr(module, "nvmlInit", None)
    if init is None:
        _log_lack("nvmlInit")
        return None
    try:
        init()
    except Exception as error:
        if getattr(error, "value", None) in _NO_DRIVER:
            return None
        raise DeviceError(f"the NVIDIA driver does not answer: NVML says {error}; a restart may be due") from error
    return Nvml(module)


def bare_uuid(uuid: object) -> str:
    """A UUID without its kind (``GPU-``, ``MIG-``), in lower case; "" where the text holds none."""
    match = _UUID.search(str(uuid).lower())
    return match.group() if match else ""


@cache
def _log_lack(function: str) -> None:
    log.warning("the installed pynvml has no %s; what it tells stays unknown", function)


def _text(value: Any) -> str:
    """Older modules answer in bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return "" if value is None else str(value)
