"""What software sees of one GPU model or one CPU: its identity, its family, its limits.

The key is made of silicon alone (compute capability, multiprocessors, L2, shared-memory limit, memory
class, MIG or vGPU profile). What changes between two boards of one model, or with the driver (name, power
limit, clocks, exact memory), is recorded as an attribute and never splits the key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tunedex.core.canonical import key_of
from tunedex.core.errors import BadInput

GIB = 2**30
MIB = 2**20
KIB = 2**10

_FAMILIES: dict[tuple[int, int], str] = {
    (7, 0): "volta",
    (7, 5): "turing",
    (8, 0): "ampere",
    (8, 6): "ampere",
    (8, 7): "ampere",
    (8, 9): "ada",
    (9, 0): "hopper",
    (10, 0): "blackwell",
    (10, 3): "blackwell",
    (11, 0): "blackwell",
    (12, 0): "blackwell",
    (12, 1): "blackwell",
}

# Digits are bounded: a key comes from anywhere, and what it says is stored in 64 bits.
_CUDA_KEY = re.compile(
    r"nvidia-sm(?P<major>[0-9]{1,3})(?P<minor>[0-9])-(?P<sms>[0-9]{1,6})sm-l2_(?P<l2>[0-9]{1,6})m"
    r"-smem_(?P<smem>[0-9]{1,6})k-mem_(?P<mem>[0-9]{1,6})g"
    r"(?:-(?P<profile>(?:mig|vgpu)-[a-z0-9.+_-]+))?"
)
_CPU_KEY = re.compile(r"cpu-(?P<model>[a-z0-9_]+)-(?P<cores>[0-9]{1,6})c-(?P<vector>[a-z0-9]+)")
_NAME_KEY = re.compile(r"name:\S+")


@dataclass(frozen=True)
class Device:
    """One device model.

    ``kind`` is ``cuda`` or ``cpu``; ``multiprocessors`` counts SMs, or a CPU's cores; ``shared_memory_bytes``
    is the most that one block can ask for (0 on a CPU); ``vector`` is a CPU's widest extension (``avx512``,
    ``avx2``, ``neon``, ``none``); ``profile`` names a MIG or vGPU slice. ``attributes`` (UUID, power limit,
    clocks, exact memory) take no part in equality.
    """

    kind: str
    name: str
    multiprocessors: int
    memory_bytes: int
    compute_capability: tuple[int, int] | None = None
    l2_bytes: int = 0
    shared_memory_bytes: int = 0
    vector: str = ""
    profile: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False)

    @property
    def key(self) -> str:
        if self.kind == "cpu":
            return f"cpu-{self.model}-{self.multiprocessors}c-{self.vector or 'none'}"
        if self.kind != "cuda" or self.compute_capability is None:
            return f"name:{self.name.strip().replace(' ', '_') or 'unknown'}"
        major, minor = self.compute_capability
        key = (
            f"nvidia-sm{major}{minor}-{self.multiprocessors}sm-l2_{round(self.l2_bytes / MIB)}m"
            f"-smem_{self.shared_memory_bytes // KIB}k-mem_{_memory_class(self.memory_bytes)}g"
        )
        return f"{key}-{self.profile}" if self.profile else key

    @property
    def family(self) -> str:
        """The architecture family; one that is not known is named by its compute capability."""
        if self.kind == "cpu":
            return "cpu"
        if self.compute_capability is None:
            return "unknown"
        major, minor = self.compute_capability
        return _FAMILIES.get(self.compute_capability, f"sm{major}{minor}")

    @property
    def model(self) -> str:
        """A CPU's name as its key spells it."""
        return _slug(self.name)

    @property
    def target(self) -> int:
        """The compute capability as compilers write it, for example 90; 0 for a CPU."""
        return self.compute_capability[0] * 10 + self.compute_capability[1] if self.compute_capability else 0

    def to_dict(self) -> dict[str, Any]:
        capability = self.compute_capability
        return {
            "key": self.key,
            "kind": self.kind,
            "name": self.name,
            "family": self.family,
            "compute_capability": f"{capability[0]}.{capability[1]}" if capability else None,
            "multiprocessors": self.multiprocessors,
            "memory_bytes": self.memory_bytes,
            "l2_bytes": self.l2_bytes,
            "shared_memory_bytes": self.shared_memory_bytes,
            "vector": self.vector,
            "profile": self.profile,
            "attributes": dict(self.attributes),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Device:
        capability = data.get("compute_capability")
        major, _, minor = capability.partition(".") if capability else ("", "", "")
        return cls(
            kind=data["kind"],
            name=data["name"],
            multiprocessors=data["multiprocessors"],
            memory_bytes=data["memory_bytes"],
            compute_capability=(int(major), int(minor)) if capability else None,
            l2_bytes=data.get("l2_bytes", 0),
            shared_memory_bytes=data.get("shared_memory_bytes", 0),
            vector=data.get("vector", ""),
            profile=data.get("profile", ""),
            attributes=dict(data.get("attributes", {})),
        )

    @classmethod
    def from_key(cls, key: str) -> Device:
        """The device that a key describes, with the limits that the key holds.

        Raises:
            BadInput: the text is not a device key, or not as a device spells its own.
        """
        device = cls._described(key)
        if device is None or device.key != key:
            raise BadInput(
                f"device {key!r} is not a device key; one looks like nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g "
                "(`tuner devices` prints yours)",
                field="device",
            )
        return device

    @classmethod
    def _described(cls, key: str) -> Device | None:
        """What the parts of ``key`` say; None where it has other parts."""
        if match := _CUDA_KEY.fullmatch(key):
            part = match.groupdict()
            return cls(
                kind="cuda",
                name=key,
                multiprocessors=int(part["sms"]),
                memory_bytes=int(part["mem"]) * GIB,
                compute_capability=(int(part["major"]), int(part["minor"])),
                l2_bytes=int(part["l2"]) * MIB,
                shared_memory_bytes=int(part["smem"]) * KIB,
                profile=part["profile"] or "",
            )
        if match := _CPU_KEY.fullmatch(key):
            return cls(
                kind="cpu",
                name=match["model"],
                multiprocessors=int(match["cores"]),
                memory_bytes=0,
                vector="" if match["vector"] == "none" else match["vector"],
            )
        if _NAME_KEY.fullmatch(key):
            return cls(kind="named", name=key.removeprefix("name:"), multiprocessors=0, memory_bytes=0)
        return None


@dataclass(frozen=True)
class Environment:
    """What else changes speed: versions of the driver, CUDA, torch, triton, numba and Python; "" where absent."""

    driver: str = ""
    cuda: str = ""
    torch: str = ""
    triton: str = ""
    numba: str = ""
    python: str = ""

    @property
    def key(self) -> str:
        return key_of(asdict(self))

    def to_dict(self) -> dict[str, str]:
        return {"key": self.key, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, str]) -> Environment:
        return cls(**{part.name: data.get(part.name, "") for part in fields(cls)})


def _slug(name: str) -> str:
    """A CPU's model name in the letters that a key may hold: lower case, words joined by underscores."""
    name = re.sub(r"\((?:r|tm)\)", "", name.lower())
    words = [w for w in re.split(r"[^a-z0-9]+", name) if w and w not in {"cpu", "processor"}]
    return "_".join(words) or "unknown"


def _memory_class(memory_bytes: int) -> int:
    """GiB rounded to two digits below 100 and to the nearest 10 above, so that ECC and driver reserves do not show."""
    gib = memory_bytes / GIB
    return round(gib) if gib < 99.5 else round(gib / 10) * 10
