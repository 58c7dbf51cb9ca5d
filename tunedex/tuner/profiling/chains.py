"""Chains of operators, found as they run: which result goes where, and where that is what a kernel does at once.

A value is known by its storage, which its views share; a weak reference keeps the storage's number from being given
to another one. Nothing here keeps a tensor alive. Like `recorder`, this runs inside somebody's program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

#: An operator on certain shapes and dtypes, on a device: what is counted and timed as one.
Kind = tuple[str, tuple[Any, ...], torch.device | None]

#: How a tensor lies in memory: shape, strides, dtype, device, and its address modulo `_ALIGNMENT`.
Geometry = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device, int]
_ALIGNMENT = 16

#: A pattern (`tunedex.kernels.patterns.Pattern`) as a dictionary, with its ``number``.
PatternData = Mapping[str, Any]
CallData = Mapping[str, Any]


class Operator:
    """What is known of an operator: the names and defaults of its arguments, and where in a pattern it may stand."""

    __slots__ = ("arguments", "backward", "defaults", "name", "places", "skipped")

    def __init__(self, function: Any, patterns: Sequence[PatternData]) -> None:
        schema = getattr(function, "_schema", None)  # a higher-order operator has none, and calls others
        arguments = schema.arguments if schema else []
        self.name: str = schema.name + (f".{schema.overload_name}" if schema.overload_name else "") if schema else ""
        self.arguments: list[str] = [argument.name for argument in arguments]
        self.defaults: dict[str, Any] = {a.name: a.default_value for a in arguments if a.has_default_value()}
        self.backward = "backward" in self.name
        #: Views and questions, which compute nothing.
        self.skipped = not schema or self.name.startswith("prim::") or _is_view(schema)
        self.places: list[tuple[PatternData, int, CallData]] = [
            (pattern, position, call)
            for pattern in patterns
            for position, step in enumerate(pattern["steps"])
            for call in step
            if call["operator"] == self.name
        ]

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, defaults included."""
        return {**self.defaults, **dict(zip(self.arguments, args, strict=False)), **kwargs}


def _is_view(schema: Any) -> bool:
    """Whether the operator writes nothing and returns memory that it was given; one does so and does not say so."""
    if schema.name == "aten::_unsafe_view":
        return True
    aliases = [returned.alias_info for returned in schema.returns]
    written = any(a.alias_info and a.alias_info.is_write for a in schema.arguments)
    return bool(aliases) and all(aliases) and not written


class Match:
    """One whole run of a pattern, counted until something shows that it was none. A count holds the calls, and those
    of them that want a gradient."""

    __slots__ = ("count", "gradient", "steps", "valid")

    def __init__(self, count: list[int], gradient: bool, steps: int) -> None:
        self.count, self.gradient, self.steps, self.valid = count, gradient, steps, True
        self._add(1)

    def cancel(self) -> None:
        if self.valid:
            self.valid = False
            self._add(-1)

    def _add(self, number: int) -> None:
        self.count[0] += number
        self.count[1] += number * self.gradient


class Value:
    """A result between two steps of ``chains``. ``others`` says that something beside a chain reads it too, ``used``
    that a chain has read it."""

    __slots__ = ("chains", "elements", "matches", "offset", "others", "reference", "used")

    def __init__(self, tensor: torch.Tensor, chains: Sequence[Chain]) -> None:
        self.reference = StorageWeakRef(tensor.untyped_storage())
        self.elements, self.offset = tensor.numel(), tensor.storage_offset()
        self.chains = chains
        self.matches: list[Match] = []
        self.others = self.used = False

    def whole(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor``, of the same storage, is this value in this order, in whatever shape."""
        same = tensor.numel() == self.elements and tensor.storage_offset() == self.offset
        return same and tensor.is_contiguous()

    def spoil(self) -> None:
        """Something else reads the value, so no kernel may leave it out."""
        self.others = True
        for match in self.matches:
            match.cancel()


class Chain:
    """The first steps of a pattern, as they were run."""

    __slots__ = ("attributes", "gradient", "kinds", "matches", "operands", "pattern", "values")

    def __init__(self, pattern: PatternData) -> None:
        self.pattern = pattern
        self.operands: tuple[tuple[str, Geometry], ...] = ()
        self.attributes: tuple[tuple[str, str], ...] = ()
        self.kinds: tuple[Kind, ...] = ()
        self.values: tuple[Value, ...] = ()
        #: For each step, the matches that it is part of.
        self.matches: tuple[list[Match], ...] = ()
        self.gradient = False

    @property
    def whole(self) -> bool:
        return len(self.kinds) == len(self.pattern["steps"])

    def then(
        self,
        call: CallData,
        bound: Mapping[str, Any],
        entered: tuple[str, Value] | None,
        kind: Kind,
        matches: list[Match],
    ) -> Chain | None:
        """The chain with one more ``call``, which the value ``entered`` by an argument; None where it does not fit."""
        given = {operand: bound.get(argument) for operand, argument in call["operands"].items()}
        if entered and call["rest"]:
            given[call["rest"]] = bound.get(next(name for name in call["value"] if name != entered[0]))
        operands = {name: tensor for name, tensor in given.items() if isinstance(tensor, torch.Tensor)}
        if len(operands) < len(given) or any(bound.get(name) != wanted for name, wanted in call["where"].items()):
            return None
        if call["last"] and bound.get(call["last"]) not in (-1, next(iter(operands.values())).dim() - 1):
            return None
        chosen = dict(self.attributes)
        for attribute, (argument, choices) in call["attributes"].items():
            if bound.get(argument) not in choices:
                return None
            chosen[attribute] = choices[bound[argument]]
        longer = Chain(self.pattern)
        places = ((name, _geometry(tensor, name in call["transposed"])) for name, tensor in operands.items())
        longer.operands = (*self.operands, *places)
        longer.attributes = tuple(chosen.items())
        longer.kinds = (*self.kinds, kind)
        longer.values = (*self.values, entered[1]) if entered else ()
        longer.matches = (*self.matches, matches)
        longer.gradient = self.gradient or any(tensor.requires_grad for tensor in operands.values())
        return longer


class Chains:
    """The whole chains that were run, counted by all that a kernel's problem follows from.

    Args:
        most: chains that are told apart; more are not counted.
        most_values: values that a thread remembers, the newest.
    """

    def __init__(self, most: int, most_values: int) -> None:
        self.most, self.most_values = most, most_values
        self.counts: dict[tuple[Any, ...], list[int]] = {}

    def follow(
        self,
        values: dict[int, Value],
        info: Operator,
        bound: Mapping[str, Any],
        tensors: Sequence[torch.Tensor],
        result: Any,
        kind: Kind,
    ) -> None:
        """Take a call that has run into account: what it reads of a thread's ``values``, by their storages, the chains
        that it continues and ends, and its own ``result``. ``bound`` may be empty where ``info`` has no place."""
        found, continued = _continued(values, info, bound, kind)
        # A backward pass reads what it likes: a kernel with a gradient keeps that as well.
        if values and not info.backward:
            reads = [number for number in map(storage_of, tensors) if number in values]
            for number in reads:
                value = values[number]
                if number not in continued or value.used or reads.count(number) > 1:
                    value.spoil()
            for number in continued:
                values[number].used = True
        if isinstance(result, tuple | list) and result:
            result = result[0]
        if not isinstance(result, torch.Tensor):
            return
        for chain in found:
            if chain.whole:
                self._end(chain, result)
        unfinished = [chain for chain in found if not chain.whole]
        if values or unfinished:
            number = storage_of(result)
            values.pop(number, None)
            if unfinished and result.is_contiguous():
                while len(values) >= self.most_values:
                    del values[next(iter(values))]
                values[number] = Value(result, unfinished)

    def _end(self, chain: Chain, result: torch.Tensor) -> None:
        """Count a whole chain, unless a value of it is read elsewhere or a chain as long holds one of its steps."""
        claims = [match for step in chain.matches for match in step if match.valid]
        if any(value.others for value in chain.values) or any(m.steps >= len(chain.kinds) for m in claims):
            return
        key = (chain.pattern["number"], chain.operands, chain.attributes, result.shape, chain.kinds)
        if key not in self.counts and len(self.counts) >= self.most:
            return
        for match in claims:
            match.cancel()
        match = Match(self.counts.setdefault(key, [0, 0]), chain.gradient and torch.is_grad_enabled(), len(chain.kinds))
        for step in chain.matches:
            step.append(match)
        for value in chain.values:
            value.matches.append(match)


def _continued(
    values: Mapping[int, Value], info: Operator, bound: Mapping[str, Any], kind: Kind
) -> tuple[list[Chain], set[int]]:
    """The chains that this call is the last step of so far, and the storages of the values that it takes for it."""
    found: list[Chain] = []
    continued: set[int] = set()
    matches: list[Match] = []
    for pattern, position, call in info.places:
        if position == 0:
            if begun := Chain(pattern).then(call, bound, None, kind, matches):
                found.append(begun)
            continue
        for name in call["value"]:
            entering = bound.get(name)
            if not isinstance(entering, torch.Tensor):
                continue
            number = storage_of(entering)
            value = values.get(number)
            if value is None or value.others or value.used or not value.whole(entering):
                continue
            for chain in value.chains:
                here = chain.pattern is pattern and len(chain.kinds) == position
                if here and (longer := chain.then(call, bound, (name, value), kind, matches)):
                    found.append(longer)
                    continued.add(number)
    return found, continued


def storage_of(tensor: torch.Tensor) -> int:
    """The number of a tensor's storage; 0 where it has none, as a sparse one."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return 0


def _geometry(tensor: torch.Tensor, transposed: bool) -> Geometry:
    """Of ``tensor``, or of its transpose."""
    shape: tuple[int, ...] = tensor.shape
    strides = tensor.stride()
    if transposed:
        shape, strides = (*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2])
    return shape, strides, tensor.dtype, tensor.device, tensor.data_ptr() % _ALIGNMENT
