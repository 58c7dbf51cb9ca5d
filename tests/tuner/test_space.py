"""A space holds what can run, says why the rest cannot, and names the constraint that empties it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from simulated import Simulation, task_of

from tunedex.core.config import Config, Value
from tunedex.core.device import Device
from tunedex.core.host import cpu
from tunedex.core.problem import Problem
from tunedex.db import open_store
from tunedex.db.records import SweepStatus
from tunedex.kernels.base import Constraint, Implementation, Kernel, Launch, Tunable
from tunedex.tuner.report import Effort
from tunedex.tuner.search.samplers import Sampler
from tunedex.tuner.space import Space


class Tiled(Implementation):
    name = "numba"
    kinds = frozenset({"cpu"})

    def __init__(self, sizes: Sequence[Value], limit: int) -> None:
        self._sizes, self._limit = tuple(sizes), limit

    def tunables(self, problem: Problem, device: Device) -> Sequence[Tunable]:
        return (Tunable("rows", self._sizes, "rows a task"), Tunable("threads", (1, 2), "threads"))

    def constraints(self, problem: Problem, device: Device) -> Sequence[Constraint]:
        def holds(values: Mapping[str, Value]) -> bool:
            return int(values["rows"]) * int(values["threads"]) <= self._limit

        return (Constraint(f"rows * threads <= {self._limit}", holds),)

    def bind(self, problem: Problem, config: Config, device: Device) -> Launch:
        raise NotImplementedError


class OnGpus(Tiled):
    name = "triton"
    kinds = frozenset({"cuda"})


def space_of(kernel: Kernel, *implementations: Implementation) -> Space:
    problem = kernel.signature.problem({"rows": 4, "cols": 8, "dtype": "float32"})
    copy = type(kernel)()
    copy.implementations = implementations  # type: ignore[misc]
    return Space.of(copy, problem, cpu())


def test_constraints_hold_for_every_config(planted: Kernel) -> None:
    space = space_of(planted, Tiled([1, 2, 4], 4))
    assert len(space) == 5
    assert {(c.values["rows"], c.values["threads"]) for c in space} == {(1, 1), (1, 2), (2, 1), (2, 2), (4, 1)}
    assert all(config in space for config in space)
    assert Config("numba", {"rows": 4, "threads": 2}) not in space


def test_doubled_values_count_once(planted: Kernel) -> None:
    assert len(space_of(planted, Tiled([1, 1, 2], 4))) == 4


def test_an_empty_space_names_what_emptied_it(planted: Kernel) -> None:
    assert space_of(planted, Tiled([8], 4)).refused == {
        "numba": "no config is left by the constraint: rows * threads <= 4"
    }
    assert space_of(planted, Tiled([], 4)).refused == {"numba": "tunable rows has no value"}


def test_another_device_s_implementation_is_refused(planted: Kernel) -> None:
    space = space_of(planted, OnGpus([1], 4), Tiled([1], 4))
    assert space.refused == {"triton": "runs on cuda only"}
    assert len(space) == 2


def test_the_library_is_a_candidate_and_the_default_can_run(planted: Kernel) -> None:
    problem = planted.signature.problem({"rows": 4, "cols": 8, "dtype": "float32"})
    space = Space.of(planted, problem, cpu())
    assert space.library == (Config("library"),)
    assert space.default == Config("numba", {"fault": "none"})


def test_a_default_that_cannot_run_is_no_default(planted: Kernel) -> None:
    assert space_of(planted, OnGpus([1], 4)).default is None


def test_one_config_is_a_space(planted: Kernel) -> None:
    assert [dict(config.values) for config in space_of(planted, Tiled([1], 1))] == [{"rows": 1, "threads": 1}]


def empty_range() -> tuple[int, ...]:
    """What a heuristic gives that has raised its lower bound over the upper."""
    return tuple(range(4, 2, 0))


class Odd(Tiled):
    """Goes wrong while it tells its space, in one of its four hooks or in what it declares."""

    def __init__(
        self, where: str, values: Callable[[], object] = lambda: (1, 2), error: type[BaseException] = ZeroDivisionError
    ) -> None:
        super().__init__([1], 4)
        self._where, self._values, self._error = where, values, error

    def missing(self) -> str | None:
        return self._at("missing")

    def takes(self, problem: Problem, device: Device) -> str | None:
        return self._at("takes")

    def tunables(self, problem: Problem, device: Device) -> Sequence[Tunable]:
        self._at("tunables")
        return (Tunable("size", self._values(), "a size"), *super().tunables(problem, device))  # type: ignore[arg-type]

    def constraints(self, problem: Problem, device: Device) -> Sequence[Constraint]:
        self._at("constraints")
        return (Constraint("size", lambda values: bool(self._at("holds")) or True),)

    def _at(self, where: str) -> None:
        if where == self._where:
            raise self._error("of its own")


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
@pytest.mark.parametrize("where", ["missing", "takes", "tunables", "constraints", "holds"])
def test_an_implementation_that_cannot_tell_its_space_costs_itself_alone(
    planted: Kernel, where: str, error: type[BaseException]
) -> None:
    space = space_of(planted, Odd(where, error=error), planted.implementation("library"))
    assert list(space) == [Config("library")]
    assert space.refused == {"numba": f"its space cannot be told: {error.__name__}: of its own"}


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (empty_range, "ValueError: range() arg 3 must not be zero"),
        (lambda: (1.0, float("nan")), "ValueError: nan is not a finite number"),
        (lambda: (1.0, float("inf")), "ValueError: inf is not a finite number"),
        (lambda: ([1], [2]), "ValueError: size of a config is a list"),
        (lambda: (None, 1), "ValueError: size of a config is a NoneType"),
        (lambda: ("a", "\ud800"), "ValueError: half a surrogate pair is no text"),
        (lambda: (object(),), "TypeError: object has no canonical form"),
        (lambda: iter((1, 2)), "TypeError: tuple_iterator has no canonical form"),
    ],
    ids=["raises", "nan", "inf", "list", "none", "surrogate", "object", "iterator"],
)
def test_values_that_no_config_can_have_are_refused(planted: Kernel, values: Callable[[], object], why: str) -> None:
    assert space_of(planted, Odd("", values)).refused == {"numba": f"its space cannot be told: {why}"}


@pytest.mark.parametrize("streams", ["x", 2.5, True, 0, -1])
def test_streams_are_counted_from_one(planted: Kernel, streams: Value) -> None:
    class Split(Tiled):
        def tunables(self, problem: Problem, device: Device) -> Sequence[Tunable]:
            return (*super().tunables(problem, device), Tunable("streams", (1, streams), "streams"))

    space = space_of(planted, Split([1], 4), planted.implementation("library"))
    assert list(space) == [Config("library")]
    why = f"its space cannot be told: ValueError: streams {streams!r} is not a count from 1"
    assert space.refused == {"numba": why}


@pytest.mark.parametrize("name", ["threads", "implementation"])
def test_a_name_stands_for_one_tunable(planted: Kernel, name: str) -> None:
    class Twice(Tiled):
        def tunables(self, problem: Problem, device: Device) -> Sequence[Tunable]:
            return (*super().tunables(problem, device), Tunable(name, (1, 2), "again"))

    refused = space_of(planted, Twice([1], 4)).refused
    assert refused == {"numba": f"tunable {name} is declared twice, or has a meaning already"}


def test_a_space_is_emptied_by_all_that_is_refused(planted: Kernel) -> None:
    assert space_of(planted, OnGpus([1], 4), Tiled([1], 4)).emptied_by == ""
    assert space_of(planted, OnGpus([1], 4), Tiled([], 4)).emptied_by == (
        "triton: runs on cuda only; numba: tunable rows has no value"
    )


@pytest.mark.parametrize("sampler", list(Sampler))
@pytest.mark.parametrize("trials", [None, 1, 50])
def test_a_sweep_says_what_has_emptied_a_space_and_goes_on(
    planted: Kernel, steps: Kernel, tmp_path: Path, sampler: Sampler, trials: int | None
) -> None:
    empty = type(planted)()
    empty.implementations = (Tiled([8], 4),)  # type: ignore[misc]
    with open_store(str(tmp_path / "tunedex.db")) as store:
        tasks = [task_of(empty), task_of(steps)]
        report = Simulation(lambda config: 100.0).sweep(store, tasks, Effort(trials, None, sampler=sampler))
        (sweep,) = store.list_sweeps().items
    first, second = report.results
    assert (first.best, first.trials) == (None, 0)
    assert first.fault == "numba: no config is left by the constraint: rows * threads <= 4"
    assert second.best is not None
    assert (second.fault, report.complete, sweep.status) == ("", False, SweepStatus.PARTIAL)
