"""A CUDA device from the numbers that its driver reports, one way for the tuner and for the client alike.

Nothing but these numbers decides the key. NVML may know more, a slice's profile for instance, but a client asks the
CUDA driver alone, and the two must spell one device alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tunedex.core.device import Device

#: ``NVIDIA H100 80GB HBM3 MIG 2g.20gb``: the driver ends a slice's name with its profile.
_MIG_NAME = re.compile(r"\bMIG (?P<profile>[0-9a-z.+_-]+)$", re.IGNORECASE)

#: ``GRID A100D-20C``, ``NVIDIA RTX6000-Ada-48Q``, ``NVIDIA H100XM-1-10CME``: card, share in GB, licence series.
_VGPU_NAME = re.compile(
    r"^(?:GRID|NVIDIA) (?P<profile>[0-9a-z]+(?:[ -][0-9a-z]+)*-[0-9]+[abcq](?:me)?)$", re.IGNORECASE
)


def profile_in(name: str) -> str:
    """The MIG or vGPU profile that a device's name carries, as keys spell it: ``mig-2g.20gb``; "" for a whole card.

    A slice whose name does not say so is told from its card by its multiprocessors and its memory alone.
    """
    name = " ".join(name.split())
    for kind, pattern in (("mig", _MIG_NAME), ("vgpu", _VGPU_NAME)):
        if match := pattern.search(name):
            return f"{kind}-{match['profile'].lower().replace(' ', '_')}"
    return ""


def cuda_device(
    *,
    name: str,
    compute_capability: tuple[int, int],
    multiprocessors: int,
    memory_bytes: int,
    l2_bytes: int,
    shared_memory_bytes: int,
    attributes: Mapping[str, Any] | None = None,
) -> Device:
    """The device with these limits; its profile is read from its name."""
    name = " ".join(name.split())
    return Device(
        kind="cuda",
        name=name,
        multiprocessors=multiprocessors,
        memory_bytes=memory_bytes,
        compute_capability=compute_capability,
        l2_bytes=l2_bytes,
        shared_memory_bytes=shared_memory_bytes,
        profile=profile_in(name),
        attributes=dict(attributes or {}),
    )


def from_properties(properties: Any, *, attributes: Mapping[str, Any] | None = None) -> Device:
    """The device that ``torch.cuda.get_device_properties`` describes.

    A slice's properties are its own: its multiprocessors and its memory, not the card's.
    """
    return cuda_device(
        name=properties.name,
        compute_capability=(properties.major, properties.minor),
        multiprocessors=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        l2_bytes=properties.L2_cache_size,
        shared_memory_bytes=properties.shared_memory_per_block_optin,
        attributes=attributes,
    )
