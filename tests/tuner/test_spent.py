"""Where a sweep's time goes, by a clock that the test moves."""

from __future__ import annotations

import pytest

from tunedex.tuner.spent import Part, Spent


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_every_moment_counts_for_the_innermost_part_alone(clock: Clock) -> None:
    spent = Spent(clock)
    clock.move(1)
    with spent.on(Part.FINAL):
        clock.move(2)
        with spent.on(Part.OPEN):
            clock.move(4)
        clock.move(8)
    found = spent.to_dict()
    assert (found["other_s"], found["final_s"], found["open_s"], found["wall_s"]) == (1, 10, 4, 15)
    assert sum(found[f"{part.value}_s"] for part in Part) == found["wall_s"]


def test_what_runs_counts_also_where_it_fails(clock: Clock) -> None:
    spent = Spent(clock)

    def interrupted() -> None:
        with spent.on(Part.MEASURE):
            clock.move(3)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    clock.move(1)
    assert (spent.to_dict()["measure_s"], spent.to_dict()["other_s"]) == (3, 1)


def test_the_first_wait_for_a_compiler_is_no_idleness(clock: Clock) -> None:
    spent = Spent(clock)
    with spent.waiting():
        clock.move(50)
    with spent.on(Part.MEASURE):
        clock.move(9)
    assert spent.gpu_busy_share == 1.0
    with spent.waiting():
        clock.move(1)
    found = spent.to_dict()
    assert (found["first_batch_s"], found["compile_wait_s"], found["gpu_busy_share"]) == (50, 1, 0.9)


def test_search_and_store_are_overhead(clock: Clock) -> None:
    spent = Spent(clock)
    assert spent.overhead_share == 0.0
    for part, seconds in ((Part.SEARCH, 2), (Part.STORE, 1), (Part.MEASURE, 7)):
        with spent.on(part):
            clock.move(seconds)
    assert spent.overhead_share == pytest.approx(0.3)
