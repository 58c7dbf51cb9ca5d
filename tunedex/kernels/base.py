"""What a kernel is: formula, reference, cost, space, default, and one or more implementations.

A kernel file declares one `Kernel` and can be imported with neither torch nor triton installed: whatever needs
them is imported inside functions (`tunedex.kernels.jit` stands in for ``triton.jit`` where triton is absent).
Adding a kernel is adding one file and naming it in `tunedex.kernels.registry`, or the entry-point group
``tunedex.kernels`` in somebody else's package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tunedex.core.config import Config, Value
from tunedex.core.device import Device
from tunedex.core.measurement import Resources
from tunedex.core.problem import Problem
from tunedex.core.signature import Signature
from tunedex.kernels.patterns import Pattern

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, "torch.Tensor"]

#: Runs a bound config: reads the operands, writes the whole of every output, returns nothing, does not synchronise.
Launch = Callable[[Tensors, Tensors], None]

#: The least compute capability that the GPU kernels are for, 8.0: Triton promises no less (it compiles for 7.5, but
#: leaves the tensor cores idle), and the CUDA C++ rounds to bfloat16 with instructions that came with it.
LEAST_TARGET = 80


def too_old(device: Device) -> str | None:
    """Why GPU kernels do not run on ``device``, if it is of a compute capability below `LEAST_TARGET`; else None."""
    if device.target >= LEAST_TARGET:
        return None
    return f"needs compute capability {LEAST_TARGET / 10}, this is {device.target / 10}"


@dataclass(frozen=True)
class Tunable:
    """One choice of a space: its values in their natural order, and what it means in a few words."""

    name: str
    values: tuple[Value, ...]
    meaning: str


@dataclass(frozen=True)
class Constraint:
    """A condition between tunables. ``holds`` gets the values of one implementation by name."""

    words: str
    holds: Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True)
class Cost:
    """The least work of a problem: floating-point operations, and bytes with each input read and output written once.

    ``peak`` names the unit that does the operations, as the device's measured ceilings name it: a dtype for matrix
    products (``bfloat16``, ``float32``, ``tf32``), or "" where only the bytes count.
    """

    flops: float
    bytes: float
    peak: str = ""


@dataclass(frozen=True)
class OutputSpec:
    """Shape and dtype (by name) of one output, contiguous."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Reference:
    """The result in float64, or in what else was asked for. ``scale`` bounds, element by element, the size of what the
    unfused chain rounds on the way: the tolerance of an element is a few roundings of its scale. Both of one dtype,
    on the operands' device."""

    value: torch.Tensor
    scale: torch.Tensor


class Implementation(ABC):
    """One way to run a kernel. Stateless; what a config needs is bound by `bind`."""

    #: ``triton``, ``cuda``, ``numba`` or ``library``.
    name: ClassVar[str]
    #: The kinds of device it runs on: ``cuda``, ``cpu``.
    kinds: ClassVar[frozenset[str]]

    def missing(self) -> str | None:
        """What is not installed here that this implementation needs; None where it can run."""
        return None

    @abstractmethod
    def tunables(self, problem: Problem, device: Device) -> Sequence[Tunable]:
        """The tunables for ``problem`` on ``device``; none for a single config."""

    def constraints(self, problem: Problem, device: Device) -> Sequence[Constraint]:
        """Conditions between the tunables, and on each of them by problem and device."""
        return ()

    def takes(self, problem: Problem, device: Device) -> str | None:
        """Why this implementation cannot run ``problem`` on ``device``; None where it can."""
        return None

    def compile(self, problem: Problem, config: Config, device: Device) -> Resources:
        """Compile ``config`` for ``device`` with no device present, filling the cache that `bind` reads.

        Raises:
            CompileError: the compiler refuses it.
        """
        return Resources()

    @abstractmethod
    def bind(self, problem: Problem, config: Config, device: Device) -> Launch:
        """A callable that runs ``config``. It may compile when first called, and must be capturable in a CUDA graph
        from its second call on."""


class CompileError(Exception):
    """A compiler refuses a config; the message is its first telling line."""


class OverLimit(CompileError):
    """A config compiles, but needs more of a resource than the device has: ``needed`` and ``limit`` in its units."""

    def __init__(self, resource: str, needed: int, limit: int) -> None:
        super().__init__(resource, needed, limit)
        self.resource, self.needed, self.limit = resource, needed, limit

    def __str__(self) -> str:
        return f"needs {self.needed} {self.resource}, the device has {self.limit}"


class Kernel(ABC):
    """A kernel. Subclasses set the class attributes and write the methods; one instance of each exists."""

    signature: ClassVar[Signature]
    implementations: ClassVar[tuple[Implementation, ...]]
    #: Which tuning dimensions apply, and why the others do not: ``{"streams": "...", "precision": "..."}``.
    dimensions_notes: ClassVar[Mapping[str, str]] = {}
    #: The operands on whose rows, and on no others, the same rows of every output depend. Rows are the last dimension
    #: but one.
    row_operands: ClassVar[frozenset[str]] = frozenset()
    #: The operands that a launch writes. They are given back their values after each run, and judged like an output
    #: where `reference` names them. Every other operand is left as it is, or the result is wrong.
    writes: ClassVar[frozenset[str]] = frozenset()
    #: How `tuner profile` recognises the kernel's unfused form in a program.
    patterns: ClassVar[tuple[Pattern, ...]] = ()

    @property
    def name(self) -> str:
        return self.signature.kernel

    @abstractmethod
    def cost(self, problem: Problem) -> Cost:
        """FLOPs and least bytes of ``problem``."""

    @abstractmethod
    def reduction_length(self, problem: Problem) -> int:
        """How many terms the longest sum of one output element has."""

    @abstractmethod
    def operands(self, problem: Problem, source: InputSource) -> dict[str, torch.Tensor]:
        """Seeded random operands of ``problem`` by name, drawn from ``source``."""

    @abstractmethod
    def outputs(self, problem: Problem) -> dict[str, OutputSpec]:
        """The outputs by name, in the order in which `eager` returns them."""

    @abstractmethod
    def reference(self, problem: Problem, operands: Tensors, dtype: torch.dtype | None = None) -> dict[str, Reference]:
        """The result by output, computed in ``dtype``: float64 (also for None), or float32 without tf32."""

    def rows_of(self, problem: Problem, operands: Tensors, rows: torch.Tensor) -> tuple[Problem, Tensors] | None:
        """The smaller problem of some rows of each item, and its operands; None for a kernel with no `row_operands`.

        ``rows`` are indices into the last dimension but one of every output.
        """
        if not self.row_operands:
            return None
        some = {n: t.index_select(-2, rows) if n in self.row_operands else t for n, t in operands.items()}
        return self.problem_of(some, problem.attributes), some

    @abstractmethod
    def eager(self, problem: Problem, operands: Tensors) -> dict[str, torch.Tensor]:
        """The unfused chain of torch operations in the operands' dtypes; differentiable."""

    @abstractmethod
    def problem_of(self, operands: Tensors, attributes: Mapping[str, str]) -> Problem:
        """The problem that a call with these tensors is.

        Raises:
            BadInput: shapes, dtypes, devices or strides do not go together.
        """

    def implementation(self, name: str) -> Implementation:
        """The implementation called ``name``.

        Raises:
            KeyError: the kernel has none of that name.
        """
        return next((i for i in self.implementations if i.name == name), None) or _absent(self.name, name)

    def map_forward(self, config: Config, version: str) -> Config | None:
        """``config`` of an older ``version`` of this kernel as this version spells it; None where it has no
        counterpart. A kernel whose tunables keep their meaning leaves it as it is."""
        return config

    def quick(self, device: Device) -> Sequence[Mapping[str, Any]]:
        """Problems of the ``quick`` preset on ``device``, as flat parameters (with ``max_error`` where one applies)."""
        return ()


def _absent(kernel: str, name: str) -> Any:
    raise KeyError(f"{kernel} has no implementation {name}")


class InputSource:
    """Seeded random tensors on one device.

    Args:
        seed: the same seed gives the same bits on the same kind of device.
        device: a torch device.
        outliers: multiply 0.1 % of the channels (the last dimension; at least one) by 50, the same channels for every
            tensor of the same width.
        strided: give every tensor of two dimensions and more a row pitch wider than its row.
    """

    OUTLIER_SHARE = 0.001
    OUTLIER_FACTOR = 50.0

    def __init__(self, seed: int, device: torch.device | str, *, outliers: bool = False, strided: bool = False) -> None:
        import torch

        self._torch = torch
        self.device = torch.device(device)
        self.outliers = outliers
        self.strided = strided
        self._seed = seed
        self._generator = torch.Generator(self.device).manual_seed(seed)

    def normal(
        self,
        shape: Sequence[int],
        dtype: str,
        *,
        scale: float = 1.0,
        mean: float = 0.0,
        outliers: bool = True,
        pitch: int = 16,
    ) -> torch.Tensor:
        """Normal values of the given mean and standard deviation, rounded to ``dtype``.

        ``outliers=False`` keeps this tensor free of them; ``pitch`` is how many elements wider than the row a
        strided tensor's row pitch is.
        """
        torch = self._torch
        values = torch.randn(tuple(shape), generator=self._generator, device=self.device, dtype=torch.float32)
        values.mul_(scale).add_(mean)
        if self.outliers and outliers and shape:
            values[..., self._outlier_channels(shape[-1])] *= self.OUTLIER_FACTOR
        values = values.to(getattr(torch, dtype))
        if self.strided and len(shape) >= 2:
            # Zeros between the rows: some operations of torch read there, and a NaN would show in their results.
            wide = torch.zeros((*shape[:-1], shape[-1] + pitch), dtype=values.dtype, device=self.device)
            view = wide[..., : shape[-1]]
            view.copy_(values)
            return view
        return values

    def _outlier_channels(self, width: int) -> torch.Tensor:
        count = max(1, round(width * self.OUTLIER_SHARE))
        generator = self._torch.Generator().manual_seed(self._seed + width)
        return self._torch.randperm(width, generator=generator)[:count].to(self.device)
