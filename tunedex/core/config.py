"""A config: the values of every tunable, first of all which implementation runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tunedex.core.canonical import key_of

Value = int | float | str | bool

#: The implementation that is the vendor's call.
LIBRARY = "library"


@dataclass(frozen=True, eq=False)
class Config:
    """One point of a space. ``values`` holds the tunables of ``implementation`` by name.

    Two configs are equal when their keys are, so 1 and 1.0 are one value, and 1 and True are two.
    """

    implementation: str
    values: Mapping[str, Value] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        return key_of(self.to_dict())

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, Config) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def library(self) -> bool:
        """Whether this is the vendor's call, which is always a candidate."""
        return self.implementation == LIBRARY

    @property
    def precision(self) -> str:
        """What it computes in: ``ieee``, the full precision of its operands, where it has no such tunable."""
        return str(self.values.get("precision", "ieee"))

    @property
    def streams(self) -> int:
        return int(self.values.get("streams", 1))

    def check(self) -> None:
        """Check what nobody vouches for: the values that a kernel declares, or those of a document.

        Raises:
            ValueError: a value is none that a tunable can have, or ``streams`` is no count.
        """
        for name, value in self.values.items():
            if not isinstance(value, (int, float, str)):
                raise ValueError(f"{name} of a config is a {type(value).__name__}")
        streams = self.values.get("streams", 1)
        if not isinstance(streams, int) or isinstance(streams, bool) or streams < 1:
            raise ValueError(f"streams {streams!r} is not a count from 1")

    @property
    def ordered(self) -> list[tuple[str, Value]]:
        """The tunables by name: the one order in which a config is shown, in whatever order its source has them."""
        return sorted(self.values.items())

    def to_dict(self) -> dict[str, Any]:
        return {"implementation": self.implementation, **dict(self.ordered)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Config:
        """
        Raises:
            ValueError: it is not the document of a config.
        """
        values = dict(data)
        implementation = values.pop("implementation", None)
        if not isinstance(implementation, str) or not implementation:
            raise ValueError("a config has no implementation")
        config = cls(implementation, values)
        config.check()
        return config

    def __str__(self) -> str:
        return " ".join([self.implementation, *(f"{name}={value}" for name, value in self.ordered)])
