"""What a kernel accepts, as data: whoever holds a signature can check a problem and serve the default config.

A signature needs no kernel code, so the server image, a client and a snapshot all carry it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tunedex.core.canonical import MAX_INT
from tunedex.core.config import Config, Value
from tunedex.core.device import Device
from tunedex.core.dtypes import DTYPES, dtype_name
from tunedex.core.errors import BadInput
from tunedex.core.problem import ALIGNMENT_BYTES, LAYOUTS, Problem

#: How a tuned size may answer for another: any size near enough, one divisible by n alike, or only the same.
MATCHING = re.compile(r"free|exact|divisible\([1-9][0-9]{0,17}\)")
#: Parameters that every kernel has.
RESERVED_NAMES = frozenset({"dtype", "layout", "alignment"})
KERNEL_NAME = re.compile(r"[a-z][a-z0-9_]*(?::[a-z][a-z0-9_]*)?")


@dataclass(frozen=True)
class Dimension:
    """A named size. ``matching`` is ``free``, ``divisible(n)`` or ``exact``; one with a ``default`` may be left out."""

    name: str
    matching: str = "free"
    default: int | None = None

    @property
    def divisor(self) -> int | None:
        """The n of ``divisible(n)``; None for another matching."""
        number = self.matching.removeprefix("divisible(").removesuffix(")")
        return int(number) if number.isdecimal() else None


BATCH = Dimension("batch", "free", 1)


@dataclass(frozen=True)
class Attribute:
    """A declared enumeration that changes the result, for example ``gelu`` = ``erf`` or ``tanh``."""

    name: str
    choices: tuple[str, ...]
    default: str


@dataclass(frozen=True)
class Operand:
    """A tensor that a kernel reads, with the dtypes it may have."""

    name: str
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class DefaultRule:
    """``config`` is the default where every range holds and the device is of ``kind``, new and large enough.

    ``ranges`` maps a dimension to its inclusive bounds; ``dtypes``, where given, holds the dtypes that every operand
    may have; ``min_target`` is the least compute capability, as `Device.target` spells it. The first rule that fits
    is used, so a list ends with a rule of no range, no dtype and no limit for each kind of device.
    """

    kind: str
    config: Mapping[str, Value]
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    min_shared_memory_bytes: int = 0
    dtypes: tuple[str, ...] = ()
    min_target: int = 0

    def runs_on(self, device: Device) -> bool:
        """Whether ``device`` is one that the rule is for, whatever the problem."""
        return (
            device.kind == self.kind
            and device.target >= self.min_target
            and device.shared_memory_bytes >= self.min_shared_memory_bytes
        )

    def fits(self, problem: Problem, device: Device) -> bool:
        return (
            self.runs_on(device)
            and (not self.dtypes or set(problem.dtypes.values()) <= set(self.dtypes))
            and all(low <= problem.dims[name] <= high for name, (low, high) in self.ranges.items())
        )


@dataclass(frozen=True)
class Signature:
    """A kernel's name, version and formula, and the problems that it takes. The operands named in ``same_dtype`` have
    one dtype in every problem."""

    kernel: str
    version: str
    formula: str
    dimensions: tuple[Dimension, ...]
    operands: tuple[Operand, ...]
    attributes: tuple[Attribute, ...] = ()
    layouts: tuple[str, ...] = ("contiguous", "strided")
    defaults: tuple[DefaultRule, ...] = ()
    same_dtype: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            ValueError: a name, a matching, a choice, a dtype, a layout or a default is not as declared.
        """
        if wrong := next(self._faults(), None):
            raise ValueError(f"kernel {self.kernel!r}: {wrong}")

    def _faults(self) -> Iterator[str]:
        if not KERNEL_NAME.fullmatch(self.kernel):
            yield "a name is of lower-case letters, digits and underscores, after its owner and a colon if imported"
        names = [dimension.name for dimension in self.dimensions]
        names += [attribute.name for attribute in self.attributes]
        names += [f"{operand.name}_dtype" for operand in self.operands]
        yield from (f"{name} is declared twice" for name in names if names.count(name) > 1)
        yield from (f"{name} has a meaning already" for name in names if name in RESERVED_NAMES)
        for dimension in self.dimensions:
            if not MATCHING.fullmatch(dimension.matching):
                yield f"{dimension.name} matches {dimension.matching!r}, which is not free, divisible(n) or exact"
        for attribute in self.attributes:
            if attribute.default not in attribute.choices:
                yield f"{attribute.name} defaults to {attribute.default!r}, which is not one of its choices"
        if not self.operands:
            yield "it reads no operand"
        for operand in self.operands:
            yield from (f"{operand.name} takes {d}, which is no dtype" for d in operand.dtypes if d not in DTYPES)
        operands = {operand.name for operand in self.operands}
        yield from (f"{n} is to share a dtype and is no operand" for n in self.same_dtype if n not in operands)
        yield from (f"layout {layout!r} is unknown" for layout in self.layouts if layout not in LAYOUTS)
        sizes = {dimension.name for dimension in self.dimensions}
        for rule in self.defaults:
            yield from (
                f"a default asks for {name}, which is no dimension" for name in rule.ranges if name not in sizes
            )
            try:
                Config.from_dict(rule.config)
            except ValueError as error:
                yield f"a default cannot be: {error}"

    @cached_property
    def names(self) -> frozenset[str]:
        """Every parameter name that a request for this kernel may carry."""
        return frozenset(
            {d.name for d in self.dimensions}
            | {a.name for a in self.attributes}
            | {f"{o.name}_dtype" for o in self.operands}
            | RESERVED_NAMES
        )

    @cached_property
    def varying(self) -> tuple[str, ...]:
        """The dimensions in which a tuned problem may differ from one that it answers for."""
        return tuple(dimension.name for dimension in self.dimensions if dimension.matching != "exact")

    def problem(self, parameters: Mapping[str, Any]) -> Problem:
        """The problem that flat ``parameters`` name: dimensions, attributes, ``dtype`` or ``x_dtype``, ``layout``,
        ``alignment``. Texts are read as the command line and a URL give them. A size of zero is accepted here.

        Raises:
            BadInput: a name or a value is wrong, or one is missing.
        """
        if unknown := sorted(set(parameters) - self.names):
            raise BadInput(
                f"{self.kernel} has no parameter {unknown[0]!r}; it takes {', '.join(self._spoken())}", field=unknown[0]
            )
        dims: dict[str, int] = {}
        for dimension in self.dimensions:
            value = parameters.get(dimension.name, dimension.default)
            if value is None:
                raise BadInput(
                    f"{self.kernel} needs {dimension.name}; it takes {', '.join(self._spoken())}", field=dimension.name
                )
            dims[dimension.name] = whole_number(dimension.name, value)
        attributes: dict[str, str] = {}
        for attribute in self.attributes:
            choice = str(parameters.get(attribute.name, attribute.default))
            if choice not in attribute.choices:
                raise BadInput(
                    f"{attribute.name}={choice} is not a choice of {self.kernel}; it takes "
                    f"{' or '.join(attribute.choices)}",
                    field=attribute.name,
                )
            attributes[attribute.name] = choice
        layout = str(parameters.get("layout", "contiguous"))
        if layout not in self.layouts:
            known = layout in LAYOUTS
            raise BadInput(
                f"layout {layout!r} is {'not taken by ' + self.kernel if known else 'unknown'}; "
                f"it takes {' or '.join(self.layouts)}",
                field="layout",
            )
        alignment = whole_number("alignment", parameters.get("alignment", ALIGNMENT_BYTES))
        if alignment not in (1, 2, 4, 8, 16):
            raise BadInput(f"alignment={alignment} is not 1, 2, 4, 8 or 16 bytes", field="alignment")
        return Problem(self.kernel, dims, attributes, self._dtypes(parameters), layout, alignment)

    def default(self, problem: Problem, device: Device) -> Config | None:
        """The config of the first default rule that fits; None where the kernel has none for such a device."""
        rule = next((rule for rule in self.defaults if rule.fits(problem, device)), None)
        return Config.from_dict(rule.config) if rule else None

    def default_for_any(self, device: Device) -> Config | None:
        """The default that holds for every problem: of the rules for this device, the first with no other
        condition."""
        rule = next((r for r in self.defaults if r.runs_on(device) and not r.ranges and not r.dtypes), None)
        return Config.from_dict(rule.config) if rule else None

    def _dtypes(self, parameters: Mapping[str, Any]) -> dict[str, str]:
        dtypes: dict[str, str] = {}
        if "dtype" in parameters:
            dtype_name(parameters["dtype"])  # a wrong one is wrong even where every operand has its own
        for operand in self.operands:
            field_name = f"{operand.name}_dtype" if f"{operand.name}_dtype" in parameters else "dtype"
            if field_name not in parameters:
                raise BadInput(f"{self.kernel} needs dtype (or {operand.name}_dtype)", field="dtype")
            name = dtype_name(parameters[field_name])
            if name not in operand.dtypes:
                raise BadInput(
                    f"{self.kernel} takes no {name} for {operand.name}; it takes {', '.join(operand.dtypes)}",
                    field=field_name,
                )
            dtypes[operand.name] = name
        for other in self.same_dtype[1:]:
            if dtypes[other] != dtypes[first := self.same_dtype[0]]:
                raise BadInput(
                    f"{self.kernel} needs {_listed(self.same_dtype)} in one dtype, "
                    f"not {first} in {dtypes[first]} and {other} in {dtypes[other]}",
                    field=f"{other}_dtype" if f"{other}_dtype" in parameters else "dtype",
                )
        return dtypes

    def _spoken(self) -> list[str]:
        optional = [f"[{a.name}={'|'.join(a.choices)}]" for a in self.attributes]
        dims = [d.name if d.default is None else f"[{d.name}]" for d in self.dimensions]
        return [*dims, *optional, "dtype"]

    def to_dict(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel,
            "version": self.version,
            "formula": self.formula,
            "dimensions": [{"name": d.name, "matching": d.matching, "default": d.default} for d in self.dimensions],
            "operands": [{"name": o.name, "dtypes": list(o.dtypes)} for o in self.operands],
            "attributes": [{"name": a.name, "choices": list(a.choices), "default": a.default} for a in self.attributes],
            "layouts": list(self.layouts),
            "defaults": [
                {
                    "kind": r.kind,
                    "config": dict(r.config),
                    "ranges": {name: list(bounds) for name, bounds in r.ranges.items()},
                    "min_shared_memory_bytes": r.min_shared_memory_bytes,
                    "dtypes": list(r.dtypes),
                    "min_target": r.min_target,
                }
                for r in self.defaults
            ],
            "same_dtype": list(self.same_dtype),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Signature:
        return cls(
            kernel=data["kernel"],
            version=data["version"],
            formula=data["formula"],
            dimensions=tuple(Dimension(d["name"], d["matching"], d["default"]) for d in data["dimensions"]),
            operands=tuple(Operand(o["name"], tuple(o["dtypes"])) for o in data["operands"]),
            attributes=tuple(Attribute(a["name"], tuple(a["choices"]), a["default"]) for a in data["attributes"]),
            layouts=tuple(data["layouts"]),
            defaults=tuple(
                DefaultRule(
                    r["kind"],
                    dict(r["config"]),
                    {name: (low, high) for name, (low, high) in r["ranges"].items()},
                    r["min_shared_memory_bytes"],
                    tuple(r["dtypes"]),
                    r.get("min_target", 0),
                )
                for r in data["defaults"]
            ),
            same_dtype=tuple(data.get("same_dtype", ())),
        )


def _listed(names: tuple[str, ...]) -> str:
    """``names`` as a sentence lists them."""
    return f"{', '.join(names[:-1])} and {names[-1]}"


def whole_number(name: str, value: Any) -> int:
    """Read a size: an int, a float with no fraction, an integer's text, or anything with ``__index__``; not a bool.

    Raises:
        BadInput: it is not a whole number from 0 to 2^63 - 1.
    """
    number: int | None = None
    if isinstance(value, str):
        if re.fullmatch(r"\s*[+-]?[0-9]{1,40}\s*", value):
            number = int(value)
    elif isinstance(value, float):
        number = int(value) if value.is_integer() else None
    elif not isinstance(value, bool):
        with suppress(TypeError):  # an array has __index__ too, and refuses
            number = operator.index(value)
    if number is None:
        raise BadInput(f"{name}={value} is not a whole number", field=name)
    if number < 0:
        raise BadInput(f"{name}={number} is negative", field=name)
    if number > MAX_INT:
        raise BadInput(f"{name}={number} is over 2^63 - 1", field=name)
    return number
