"""What is feasible is what a nested loop would find, and nothing is visited that an earlier choice rules out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedex.kernels.base import Constraint
from tunedex.tuner.codes import RowIndex
from tunedex.tuner.feasible import emptying, feasible

Values = Mapping[str, Any]

#: Each reads different tunables, some of them only where others have a certain value.
CONDITIONS: Mapping[str, Callable[[Values], bool]] = {
    "product": lambda v: v["a"] * v["c"] <= 4,
    "sum": lambda v: v["b"] + v["d"] >= 3,
    "either": lambda v: v["d"] == 1 or v["a"] <= 2,
    "guarded": lambda v: v["a"] == 1 or 6 // (v["b"] - 1) > 2,
    "all": lambda v: sum(v.values()) % 3 != 0,
    "unpacked": lambda v: max({**v}.values()) > 1,
    "got": lambda v: v.get("b", 0) < 4 and "c" in v,
    "never": lambda v: False,
    "always": lambda v: True,
}

spaces = st.fixed_dictionaries({name: st.lists(st.integers(1, 5), min_size=1, unique=True) for name in "abcd"})


def constraints(names: Sequence[str]) -> list[Constraint]:
    return [Constraint(name, CONDITIONS[name]) for name in names]


def by_loops(space: Mapping[str, Sequence[int]], names: Sequence[str]) -> list[tuple[int, ...]]:
    found = []
    for values in itertools.product(*space.values()):
        point = dict(zip(space, values, strict=True))
        if all(CONDITIONS[name](point) for name in names):
            found.append(values)
    return found


def values_of(space: Mapping[str, Sequence[int]], codes: Any) -> list[tuple[int, ...]]:
    return [tuple(values[code] for values, code in zip(space.values(), row, strict=True)) for row in codes.tolist()]


@given(space=spaces, names=st.lists(st.sampled_from(sorted(CONDITIONS)), unique=True))
def test_it_is_what_nested_loops_find_in_their_order(space: dict[str, list[int]], names: list[str]) -> None:
    names = [name for name in names if name != "guarded" or 1 not in space["b"]]
    expected = by_loops(space, names)
    assert values_of(space, feasible(space, constraints(names))) == expected
    emptied = emptying(space, constraints(names))
    if expected:
        assert emptied is None
    else:
        first = next(n for n in range(1, len(names) + 1) if not by_loops(space, names[:n]))
        assert emptied is not None
        assert emptied.words == names[first - 1]


def test_a_constraint_may_raise_where_others_break() -> None:
    space = {"a": [2], "b": [1, 2], "c": [1], "d": [1]}
    late = Constraint("b is more than d", lambda v: v["b"] > v["d"])
    assert values_of(space, feasible(space, [*constraints(["guarded"]), late])) == [(2, 2, 1, 1)]
    with pytest.raises(ZeroDivisionError):
        feasible(space, constraints(["guarded"]))


@pytest.mark.parametrize("error", [KeyError("e"), SystemExit(3), AttributeError("x")])
def test_what_a_constraint_raises_is_raised(error: BaseException) -> None:
    def holds(values: Values) -> bool:
        raise error

    with pytest.raises(type(error)):
        feasible({"a": [1, 2]}, [Constraint("broken", holds)])


def test_a_name_that_is_no_tunable_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="rows"):
        feasible({"a": [1, 2]}, [Constraint("of another kernel", lambda v: v["rows"] > 1)])


def test_each_combination_is_asked_once_and_what_is_ruled_out_never() -> None:
    """A product of 10^12 points, of which nested loops would not come to an end."""
    space: dict[str, list[int]] = {f"t{n}": list(range(10)) for n in range(12)}
    asked: list[tuple[int, ...]] = []

    def linked(first: str, second: str) -> Constraint:
        def holds(values: Values) -> bool:
            asked.append((values[first], values[second]))
            return bool(values[first] == values[second])

        return Constraint(f"{first} == {second}", holds)

    links = [linked(f"t{n}", f"t{n + 1}") for n in range(11)]
    codes = feasible(space, links)
    assert np.array_equal(codes, np.repeat(np.arange(10)[:, None], 12, axis=1))
    assert len(asked) <= 11 * 100


def test_a_million_points_are_found_and_so_is_each_of_them() -> None:
    space = {f"t{n}": list(range(10)) for n in range(6)}
    codes = feasible(space, [])
    assert codes.shape == (10**6, 6)
    index = RowIndex(codes)
    for place in (0, 1, 31415, 999_999):
        assert index.place(codes[place]) == place
    assert index.place([0, 0, 0, 0, 0, 10]) is None


def test_more_than_can_be_searched_is_refused() -> None:
    space = {f"t{n}": list(range(10)) for n in range(6)}
    with pytest.raises(ValueError, match="more than 999999 configs are left by its constraints"):
        feasible(space, [], most=999_999)


def test_a_space_of_nothing_to_choose_is_one_point() -> None:
    assert feasible({}, []).shape == (1, 0)
    assert feasible({}, constraints(["always"])).shape == (1, 0)
    assert feasible({}, constraints(["never"])).shape == (0, 0)


@given(rows=st.lists(st.tuples(*[st.integers(-1, 6)] * 3), min_size=1, unique=True))
def test_a_row_is_found_where_it_is(rows: list[tuple[int, ...]]) -> None:
    index = RowIndex(np.array(rows, dtype=np.int32))
    for row in itertools.product(range(-1, 7), repeat=3):
        assert index.place(row) == (rows.index(row) if row in rows else None)
