"""A space holds what can run, says why the rest cannot, and names the constraint that empties it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunedex.core.config import Config, Value
from tunedex.core.device import Device
from tunedex.core.host import cpu
from tunedex.core.problem import Problem
from tunedex.kernels.base import Constraint, Implementation, Kernel, Launch, Tunable
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
