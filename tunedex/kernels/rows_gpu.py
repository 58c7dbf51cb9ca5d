"""What the row kernels' implementations on a GPU share, in whichever language: devices, rows, and kinds of tunables.

A tile is some rows that a program (a block) holds in registers. A program does one tile, or walks over many.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from tunedex.core.device import Device
from tunedex.core.problem import Problem
from tunedex.kernels.base import Constraint, Implementation, Tunable, too_old
from tunedex.kernels.rows import LONGEST_ROW


class GpuRows(Implementation):
    """A row kernel on a GPU. A language's class says how a row is cut, a kernel's class what it chooses besides."""

    kinds: ClassVar[frozenset[str]] = frozenset({"cuda"})

    #: The tunable that makes programs walk over the tiles (0 for one a tile), and the one that is a hint to the caches.
    walking: ClassVar[str]
    hint: ClassVar[str]
    #: The most elements of one operand that a thread holds.
    most_elements: ClassVar[int]

    def takes(self, problem: Problem, device: Device) -> str | None:
        long = problem.dims["cols"] > LONGEST_ROW
        return too_old(device) or (f"keeps rows of at most {LONGEST_ROW} in registers" if long else None)

    def tunables(self, problem: Problem, device: Device) -> Sequence[Tunable]:
        return (*self.cuts(problem), *self.choices(problem))

    def constraints(self, problem: Problem, device: Device) -> Sequence[Constraint]:
        return (*self.cut_constraints(problem, device), *self.choice_constraints())

    @abstractmethod
    def cuts(self, problem: Problem) -> Sequence[Tunable]:
        """How rows are cut into tiles, accesses and programs."""

    @abstractmethod
    def cut_constraints(self, problem: Problem, device: Device) -> Sequence[Constraint]:
        """Conditions between the `cuts`."""

    def choices(self, problem: Problem) -> Sequence[Tunable]:
        """The kernel's own tunables."""
        return ()

    def choice_constraints(self) -> Sequence[Constraint]:
        """Conditions that hold for the kernel's own tunables."""
        return ()

    def plain_with(self, what: str, absent: Callable[[Mapping[str, Any]], bool]) -> Constraint:
        """``what`` is tried with the plainest launch alone, so that the space stays small; ``absent`` says of values
        that they are without it."""
        return Constraint(
            f"{what} with one {self.walking.removesuffix('s')} a tile and no hint to the caches",
            lambda v: absent(v) or not (v[self.walking] or v[self.hint]),
        )
