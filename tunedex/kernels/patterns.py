"""How a kernel's unfused form looks in somebody's program: chains of torch operators, as data.

A pattern names nothing but operators, as torch's dispatcher calls them, and their arguments, so that it can be
compared with what a program runs where this package is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Argument = bool | int | float | str | list[int] | None


@dataclass(frozen=True)
class Call:
    """One way in which an operator is called at its place in a chain.

    Args:
        operator: its qualified name with its overload, as in ``aten::add.Tensor``; ``aten::gelu`` where it has none.
        operands: the kernel's operand that each argument is.
        transposed: those of these operands whose argument is their transpose.
        value: the arguments through one of which the result of the call before enters; none in a chain's first call.
        rest: the operand that the other argument of ``value`` is, where there are two.
        where: what arguments have to be; one that is not named may be anything.
        last: an argument that has to be the last dimension of the first tensor, counted from either end.
        attributes: for each of the kernel's attributes the argument that decides it, and the choice by its value.
    """

    operator: str
    operands: Mapping[str, str] = field(default_factory=dict)
    transposed: tuple[str, ...] = ()
    value: tuple[str, ...] = ()
    rest: str = ""
    where: Mapping[str, Argument] = field(default_factory=dict)
    last: str = ""
    attributes: Mapping[str, tuple[str, Mapping[str, str]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Pattern:
    """A chain of calls that a kernel replaces: at each step one of several calls, whose first result is the value of
    the next. Nothing but the chain reads a value between two steps."""

    steps: tuple[tuple[Call, ...], ...]

    def __post_init__(self) -> None:
        """Refuse what cannot match.

        Raises:
            ValueError: a pattern has no step, a step no call, or a call after the first takes no value.
        """
        if not self.steps or not all(self.steps):
            raise ValueError("a pattern has at least a step, and each step at least a call")
        for number, step in enumerate(self.steps):
            for call in step:
                if bool(call.value) != (number > 0):
                    raise ValueError(f"{call.operator} takes {'no ' if number else 'a '}value in step {number}")
                if call.rest and len(call.value) != 2:
                    raise ValueError(f"{call.operator} has a rest, and not two arguments that a value may enter by")
