"""The search proposes nothing twice, ends when the space does, goes on where it stopped, and finds what is good."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from tunedex.core.config import Config, Value
from tunedex.core.device import Device
from tunedex.core.host import cpu
from tunedex.core.problem import Problem
from tunedex.db.records import Tried
from tunedex.kernels.base import Constraint, Implementation, Kernel, Launch, Tunable
from tunedex.tuner.search.listing import Candidate
from tunedex.tuner.search.samplers import Sampler
from tunedex.tuner.search.search import Ended, Search
from tunedex.tuner.search.sources import Source
from tunedex.tuner.space import Space

#: All but those that take seconds for a handful of configs, and one of two alike.
EVERY_SAMPLER = [sampler for sampler in Sampler if sampler not in (Sampler.GP, Sampler.CMAES, Sampler.TPE_UNIVARIATE)]


class Grid(Implementation):
    """Sizes in powers of two, a category, and a constraint; a library call beside it."""

    name = "numba"
    kinds = frozenset({"cpu"})

    def tunables(self, problem: Problem, device: Device) -> Sequence[Tunable]:
        powers = tuple(2**n for n in range(6))
        return (
            Tunable("rows", powers, "rows"),
            Tunable("cols", powers, "columns"),
            Tunable("order", ("row", "column"), "loop order"),
        )

    def constraints(self, problem: Problem, device: Device) -> Sequence[Constraint]:
        def small(values: Mapping[str, Value]) -> bool:
            return int(values["rows"]) * int(values["cols"]) <= 256

        return (Constraint("rows * cols <= 256", small),)

    def bind(self, problem: Problem, config: Config, device: Device) -> Launch:
        raise NotImplementedError


def time_of(config: Config) -> float | None:
    """A smooth landscape with its best at rows=8, cols=4, order=row; cols=1 fails."""
    if config.implementation == "library":
        return 40.0
    if "fault" in config.values:
        return 60.0
    rows, cols = int(config.values["rows"]), int(config.values["cols"])
    if cols == 1:
        return None
    away = abs(math.log2(rows / 8)) + abs(math.log2(cols / 4)) + (config.values["order"] == "column")
    return 10.0 + 5 * away


@pytest.fixture
def spaces(planted: Kernel) -> list[Space]:
    kernel = type(planted)()
    kernel.implementations = (Grid(), planted.implementation("library"))  # type: ignore[misc]
    problem = kernel.signature.problem({"rows": 4, "cols": 8, "dtype": "float32"})
    return [Space.of(kernel, problem.at_batch(batch), cpu()) for batch in (1, 2)]


def run(search: Search, ask: int = 1, most: int = 10_000) -> list[Candidate]:
    tried: list[Candidate] = []
    while len(tried) < most and (candidates := search.ask(ask)):
        for candidate in candidates:
            tried.append(candidate)
            search.tell(candidate, time_of(candidate.config))
    return tried


@pytest.mark.parametrize("sampler", EVERY_SAMPLER)
@pytest.mark.parametrize("ask", [1, 7])
def test_the_whole_space_is_tried_once_and_then_it_ends(spaces: list[Space], sampler: Sampler, ask: int) -> None:
    search = Search(spaces[:1], sampler=sampler, trials=500, seed=1)
    tried = run(search, ask)
    assert len(tried) == len(set(tried))
    # The default of the planted kernel lies outside this space and is tried all the same.
    assert len(tried) == len(spaces[0]) + 1
    assert search.ask(5) == []


@pytest.mark.parametrize("sampler", EVERY_SAMPLER)
def test_the_trials_bound_the_search(spaces: list[Space], sampler: Sampler) -> None:
    assert len(run(Search(spaces, sampler=sampler, trials=17, seed=1), 4)) == 17


@pytest.mark.parametrize("sampler", EVERY_SAMPLER)
def test_the_default_and_the_library_come_first(spaces: list[Space], sampler: Sampler) -> None:
    tried = run(Search(spaces[:1], sampler=sampler, trials=1, seed=1))
    assert [c.config.implementation for c in tried] == ["numba", "library"]
    assert tried[0].config == spaces[0].default


@pytest.mark.parametrize("sampler", [Sampler.AUTO, Sampler.TPE])
def test_what_learns_comes_near_the_best_in_a_third_of_the_space(spaces: list[Space], sampler: Sampler) -> None:
    for seed in range(3):
        tried = run(Search(spaces[:1], sampler=sampler, trials=25, seed=seed), 4)
        assert min(time_of(c.config) or math.inf for c in tried) <= 15.0


def test_the_same_seed_proposes_the_same(spaces: list[Space]) -> None:
    one, two = (run(Search(spaces, sampler=Sampler.AUTO, trials=30, seed=5)) for _ in range(2))
    assert one == two


@pytest.mark.parametrize("sampler", EVERY_SAMPLER)
def test_a_search_goes_on_from_what_is_recalled(spaces: list[Space], sampler: Sampler) -> None:
    first = run(Search(spaces, sampler=sampler, trials=30, seed=1))
    again = Search(spaces, sampler=sampler, trials=50, seed=1)
    for candidate in first:
        again.recall(candidate, time_of(candidate.config))
        again.recall(candidate, time_of(candidate.config))
    rest = run(again, 4)
    assert len(rest) == 20
    assert not set(rest) & set(first)
    assert len(again.told) == 50


def test_a_recalled_config_that_the_space_lost_is_neither_proposed_nor_counted(spaces: list[Space]) -> None:
    search = Search(spaces[:1], sampler=Sampler.AUTO, trials=40, seed=1)
    gone = Candidate(spaces[0].problem, Config("numba", {"rows": 3, "cols": 4, "order": "row"}))
    search.recall(gone, 5.0)
    tried = run(search)
    assert gone not in tried
    assert len(tried) == 40
    assert gone not in search.told


def test_both_batches_are_searched(spaces: list[Space]) -> None:
    tried = run(Search(spaces, sampler=Sampler.AUTO, trials=40, seed=1))
    assert {c.problem.batch for c in tried} == {1, 2}


@pytest.mark.parametrize("sampler", EVERY_SAMPLER)
def test_failures_only_do_not_stop_a_search(spaces: list[Space], sampler: Sampler) -> None:
    search = Search(spaces[:1], sampler=sampler, trials=20, seed=1)
    count = 0
    while candidates := search.ask(3):
        for candidate in candidates:
            search.tell(candidate, None)
            count += 1
    assert count == 20


def sourced(spaces: list[Space], shift: int) -> Source:
    """All configs of the first space, where the best has twice as many rows ``shift`` times."""
    problem = spaces[0].problem
    times: dict[Candidate, float | None] = {}
    for branch in spaces[0].branches:
        for config in branch:
            rows = int(config.values.get("rows", 1))
            moved = Config(config.implementation, {**config.values, "rows": max(1, rows >> shift)})
            times[Candidate(problem, config)] = time_of(moved if "rows" in config.values else config)
    return Source(Tried("a device", "an environment", problem, len(times)), problem, 1.0, times)


def test_a_search_that_knows_starts_with_what_was_best_elsewhere_and_finds_what_is_here(spaces: list[Space]) -> None:
    search = Search(spaces[:1], sampler=Sampler.AUTO, trials=14, seed=1, sources=[sourced(spaces, 1)])
    tried = run(search, 2)
    assert time_of(tried[2].config) == pytest.approx(15.0)  # after default and library, one step from the best
    assert min(time_of(each.config) or math.inf for each in tried) == 10.0


def test_what_no_space_has_any_more_says_nothing(spaces: list[Space]) -> None:
    gone = Candidate(spaces[0].problem, Config("numba", {"rows": 3, "cols": 4, "order": "row"}))
    source = replace(sourced(spaces, 0), times={gone: 1.0})
    search, cold = (Search(spaces[:1], sampler=Sampler.AUTO, trials=14, seed=1, sources=s) for s in ([source], []))
    assert run(search) == run(cold)


def test_a_search_ends_where_nothing_faster_is_expected(spaces: list[Space]) -> None:
    def flat(search: Search) -> int:
        count = 0
        while candidates := search.ask(4):
            for candidate in candidates:
                search.tell(candidate, 10.0)
                count += 1
        return count

    ends = Search(spaces, sampler=Sampler.AUTO, trials=100, seed=1, stops=True)
    assert flat(ends) < 60
    assert (ends.settled, ends.ended) == (True, Ended.GAIN)
    goes_on = Search(spaces, sampler=Sampler.AUTO, trials=100, seed=1)
    assert flat(goes_on) == 100
    assert (goes_on.settled, goes_on.ended) == (False, Ended.TRIALS)


def test_a_surprise_keeps_a_search_going(spaces: list[Space]) -> None:
    search = Search(spaces, sampler=Sampler.AUTO, trials=100, seed=1, stops=True)
    under_way: list[Candidate] = []
    while not search.settled:
        asked = search.ask(8)
        for candidate in asked[:-1]:
            search.tell(candidate, 10.0)
        under_way += asked[-1:]
    assert search.ask(1) == []
    search.tell(under_way[-1], 5.0)
    assert not search.settled
    assert len(search.ask(1)) == 1
