"""What a caller asks of a config besides that it runs: an objective and limits."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from tunedex.core.errors import BadInput
from tunedex.core.signature import whole_number


class Objective(StrEnum):
    """What the caller wants least of, or most of in the case of throughput."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    ERROR = "error"
    MEMORY = "memory"


@dataclass(frozen=True)
class Limits:
    """What the caller asks of a config.

    ``max_error`` is a relative L2 error against float64 (None: lossless), ``max_latency_us`` a time in
    microseconds, ``max_memory`` bytes that a call may allocate besides its operands and outputs. ``policy`` is
    how the caller launches: ``eager``, or ``graph`` for one that replays CUDA graphs. ``same_bits`` keeps only
    configs whose output bits are those of the row with that output hash.
    """

    objective: Objective = Objective.LATENCY
    max_error: float | None = None
    max_latency_us: float | None = None
    max_memory: int | None = None
    policy: str = "eager"
    same_bits: str | None = None

    NAMES: ClassVar = ("objective", "max_error", "max_latency_us", "max_memory", "policy", "same_bits")

    @classmethod
    def read(cls, parameters: Mapping[str, Any]) -> Limits:
        """Read limits as the command line, a URL or a keyword gives them.

        Raises:
            BadInput: a value is wrong.
        """
        objective = str(parameters.get("objective", Objective.LATENCY))
        if objective not in list(Objective):
            raise BadInput(f"objective {objective!r} is unknown; known are {', '.join(Objective)}", field="objective")
        # An answer's policy, such as graph-cold, may be asked back: how the caller launches is its first word.
        policy = str(parameters.get("policy", "eager")).removesuffix("-cold").removesuffix("-warm")
        if policy not in ("eager", "graph"):
            raise BadInput(f"policy {policy!r} is unknown; known are eager, graph", field="policy")
        memory = parameters.get("max_memory")
        bits = parameters.get("same_bits")
        return cls(
            objective=Objective(objective),
            max_error=_positive("max_error", parameters.get("max_error")),
            max_latency_us=_positive("max_latency_us", parameters.get("max_latency_us")),
            max_memory=None if memory is None else whole_number("max_memory", memory),
            policy=policy,
            same_bits=None if bits is None else _hash(bits),
        )

    @classmethod
    def apart(cls, parameters: Mapping[str, Any]) -> tuple[Limits, dict[str, Any]]:
        """The limits among flat ``parameters``, and the others, which are `Signature.problem`'s.

        Raises:
            BadInput: the value of a limit is wrong.
        """
        limits = cls.read({name: value for name, value in parameters.items() if name in cls.NAMES})
        return limits, {name: value for name, value in parameters.items() if name not in cls.NAMES}

    def to_dict(self) -> dict[str, Any]:
        """Only what differs from the defaults, as `read` takes it."""
        given = {name: getattr(self, name) for name in self.NAMES}
        return {name: value for name, value in given.items() if value != getattr(NO_LIMITS, name)}


NO_LIMITS = Limits()

# What `float` reads besides, digits of other scripts and underscores, is more likely a mistake than a number.
_PLAIN = re.compile(r"[0-9a-zA-Z.+-]+")
_HASH = re.compile("[0-9a-f]{1,64}")


def _hash(bits: Any) -> str:
    if not _HASH.fullmatch(text := str(bits)):
        raise BadInput(
            f"same_bits={text[:80]} is not the hash of an output's bits, 32 hexadecimal digits in lower case",
            field="same_bits",
        )
    return text


def _positive(name: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        plain = not isinstance(value, bool) and (not isinstance(value, str) or _PLAIN.fullmatch(value.strip()))
        number = float(value) if plain else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise BadInput(f"{name}={value} is not a number above 0", field=name)
    return number
