"""What one trial gave: a measurement, or a failure of a named kind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from tunedex.core.typed import check_types


class FailureKind(StrEnum):
    """Why a config has no time."""

    COMPILE_ERROR = "compile_error"
    OUT_OF_RESOURCES = "out_of_resources"
    ILLEGAL_ACCESS = "illegal_access"
    TIMEOUT = "timeout"
    WRONG_RESULT = "wrong_result"
    CRASH = "crash"
    OOM = "oom"
    INVALID_TIMING = "invalid_timing"


class Policy(StrEnum):
    """How a time was taken: launched one by one or replayed in a CUDA graph, with a cold or a warm L2 cache."""

    EAGER_COLD = "eager-cold"
    EAGER_WARM = "eager-warm"
    GRAPH_COLD = "graph-cold"
    GRAPH_WARM = "graph-warm"

    @property
    def graph(self) -> bool:
        return self.value.startswith("graph")

    @property
    def cold(self) -> bool:
        return self.value.endswith("cold")

    @property
    def warm(self) -> Policy:
        """This policy with a warm cache."""
        return Policy.GRAPH_WARM if self.graph else Policy.EAGER_WARM


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel needs of one multiprocessor; None where the compiler does not tell."""

    shared_memory_bytes: int | None = None
    registers: int | None = None
    spill_bytes: int | None = None

    def check(self) -> None:
        """Check what nobody vouches for: what an implementation gives.

        Raises:
            ValueError: a member is no count.
        """
        check_types(self)
        for name, count in asdict(self).items():
            if count is not None and count < 0:
                raise ValueError(f"{name} {count} is negative")


@dataclass(frozen=True)
class Measurement:
    """The time of one config on one problem, with what it costs besides.

    ``time_us`` is the median and ``p20_us``, ``p80_us`` the quantiles of ``samples`` timed calls under
    ``policy``. ``error`` is the larger relative L2 error against float64 over the input sets; ``lossless``
    says that the acceptance rule held with no ``max_error``. ``peak_memory_bytes`` is what the call
    allocates beyond its operands and outputs, None where the device does not tell. ``output_hash`` is of the
    output's bits on the fixed inputs.
    """

    time_us: float
    p20_us: float
    p80_us: float
    samples: int
    policy: Policy
    error: float
    lossless: bool
    output_hash: str
    peak_memory_bytes: int | None = None
    resources: Resources = Resources()
    energy_j: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measurement:
        """What `to_dict` gives; `check` says whether it is sound."""
        values = dict(data)
        values["policy"] = Policy(values["policy"])
        values["resources"] = Resources(**values.get("resources", {}))
        return cls(**values)

    def check(self) -> None:
        """
        Raises:
            ValueError: a time is none, or the error is no number from 0.
        """
        for name in ("time_us", "p20_us", "p80_us"):
            require_time(name, getattr(self, name))
        if not 0 <= self.error < math.inf:
            raise ValueError(f"error {self.error} is not a number from 0")


def require_time(name: str, time_us: float) -> None:
    """
    Raises:
        ValueError: ``time_us``, called ``name``, is no time: what is asked of it divides by it.
    """
    if not 0 < time_us < math.inf:
        raise ValueError(f"{name} {time_us} is not a time above 0")


@dataclass(frozen=True)
class Failure:
    """A config that has no time; ``detail`` is one line, with the place and the size of the fault where known."""

    kind: FailureKind
    detail: str = ""
