"""A problem: everything that changes a kernel's result or what may run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tunedex.core.canonical import key_of

LAYOUTS = ("contiguous", "channels_last", "strided")

#: Every operand's address and row pitch is a multiple of this many bytes, unless a problem says otherwise.
ALIGNMENT_BYTES = 16


@dataclass(frozen=True)
class Problem:
    """A kernel with its named dimensions, attributes, operand dtypes, layout and alignment class.

    Made by `Signature.problem`, which checks and completes it; two problems are equal when their keys are.
    """

    kernel: str
    dims: Mapping[str, int] = field(hash=False)
    attributes: Mapping[str, str] = field(hash=False)
    dtypes: Mapping[str, str] = field(hash=False)
    layout: str = "contiguous"
    alignment: int = ALIGNMENT_BYTES

    @cached_property
    def key(self) -> str:
        return key_of(self.to_dict())

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def batch(self) -> int:
        return self.dims.get("batch", 1)

    @property
    def dtype(self) -> str:
        """The dtype of the first operand, which is also that of the result unless a kernel says otherwise."""
        return next(iter(self.dtypes.values()))

    @property
    def empty(self) -> bool:
        """Whether a dimension is zero, so that there is nothing to compute."""
        return any(size == 0 for size in self.dims.values())

    def at_batch(self, batch: int) -> Problem:
        """The same problem with another batch."""
        return Problem(
            self.kernel, {**self.dims, "batch": batch}, self.attributes, self.dtypes, self.layout, self.alignment
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel,
            "dims": dict(self.dims),
            "attributes": dict(self.attributes),
            "dtypes": dict(self.dtypes),
            "layout": self.layout,
            "alignment": self.alignment,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Problem:
        return cls(
            data["kernel"],
            dict(data["dims"]),
            dict(data["attributes"]),
            dict(data["dtypes"]),
            data["layout"],
            data["alignment"],
        )

    def __str__(self) -> str:
        """As the command line takes it: ``softmax:batch=2,rows=1024,cols=4096,dtype=float32``."""
        parts = [f"{name}={size}" for name, size in self.dims.items() if name != "batch" or size != 1]
        parts += [f"{name}={value}" for name, value in self.attributes.items()]
        kinds = set(self.dtypes.values())
        if len(kinds) == 1:
            parts.append(f"dtype={next(iter(kinds))}")
        else:
            parts += [f"{operand}_dtype={name}" for operand, name in self.dtypes.items()]
        if self.layout != "contiguous":
            parts.append(f"layout={self.layout}")
        if self.alignment != ALIGNMENT_BYTES:
            parts.append(f"alignment={self.alignment}")
        return f"{self.kernel}:{','.join(parts)}"
