"""The rules that choose a row."""

from __future__ import annotations

import json
from typing import Any

import pytest
from core_examples import FULL_ROW, measurement, row
from hypothesis import given, settings
from hypothesis import strategies as st

from tunedex.core.config import Config
from tunedex.core.limits import Limits, Objective
from tunedex.core.measurement import FailureKind, Measurement, Policy
from tunedex.core.row import MARGIN, Row, allows, beats, choose


def test_a_row_round_trips() -> None:
    for original in (FULL_ROW, row(0)):
        assert Row.from_dict(json.loads(json.dumps(original.to_dict()))) == original


def test_a_measurement_round_trips() -> None:
    original = measurement(policy=Policy.GRAPH_WARM, energy_j=1.5)
    assert Measurement.from_dict(json.loads(json.dumps(original.to_dict()))) == original


def test_policies_and_failures_by_name() -> None:
    assert [policy.graph for policy in Policy] == [False, False, True, True]
    assert FailureKind("wrong_result") is FailureKind.WRONG_RESULT


def test_speedup_is_over_the_default() -> None:
    assert row(0, 5.0, default_us=10.0).speedup == 2.0
    assert row(0, 5.0).speedup is None


@pytest.mark.parametrize(
    ("time_us", "wins"), [(97.9, True), (98.0, False), (99.0, False), (100.0, False), (101.0, False)]
)
def test_less_than_the_margin_is_noise(time_us: float, wins: bool) -> None:
    assert MARGIN == 0.02
    assert beats(time_us, 100.0) is wins
    chosen = choose([row(0, 100.0), row(1, time_us)])
    assert chosen is not None
    assert chosen.rank == int(wins)


def test_nothing_to_choose_from() -> None:
    assert choose([]) is None
    assert choose([row(0, lossless=False)]) is None


@pytest.mark.parametrize(
    ("limits", "rank"),
    [
        (Limits(), 0),
        (Limits(max_error=1e-2), 2),
        (Limits(max_error=1e-4), 0),
        (Limits(max_error=1e-9), None),
        (Limits(max_latency_us=5.0), None),
        (Limits(max_latency_us=5.0, max_error=1e-2), 2),
        (Limits(max_memory=0), 1),
        (Limits(max_memory=10**6), 0),
        (Limits(same_bits="beef"), 1),
        (Limits(same_bits="dead"), None),
        (Limits(objective=Objective.THROUGHPUT), 0),
        (Limits(objective=Objective.MEMORY), 1),
        (Limits(objective=Objective.ERROR), 1),
        (Limits(objective=Objective.MEMORY, max_error=1e-2), 1),
    ],
    ids=str,
)
def test_limits_and_objectives(limits: Limits, rank: int | None) -> None:
    rows = [
        row(2, 4.0, error=1e-3, lossless=False, peak_memory_bytes=None),
        row(1, 12.0, error=1e-8, output_hash="beef", peak_memory_bytes=0),
        row(0, 10.0, error=1e-7, peak_memory_bytes=4096),
        row(3, 20.0, error=1e-7, peak_memory_bytes=4096),
    ]
    chosen = choose(rows, limits)
    assert (chosen.rank if chosen else None) == rank


@pytest.mark.parametrize(
    ("policy", "streams", "asked", "allowed"),
    [
        (Policy.EAGER_COLD, 1, "eager", True),
        (Policy.EAGER_COLD, 1, "graph", True),
        (Policy.EAGER_COLD, 2, "eager", True),
        (Policy.EAGER_COLD, 2, "graph", True),
        (Policy.GRAPH_COLD, 1, "eager", True),
        (Policy.GRAPH_COLD, 1, "graph", True),
        (Policy.GRAPH_COLD, 2, "eager", False),
        (Policy.GRAPH_COLD, 2, "graph", True),
    ],
)
def test_streams_timed_in_a_graph_serve_who_runs_in_a_graph(
    policy: Policy, streams: int, asked: str, allowed: bool
) -> None:
    one = row(0, config=Config("triton", {"streams": streams}), policy=policy)
    assert allows(one, Limits(policy=asked)) is allowed
    assert choose([one], Limits(policy=asked)) == (one if allowed else None)


def test_unknown_memory_meets_no_bound() -> None:
    assert not allows(row(0, peak_memory_bytes=None), Limits(max_memory=2**62))
    assert allows(row(0, peak_memory_bytes=None), Limits())


ROWS = st.lists(
    st.builds(
        lambda time_us, error, memory, lossless: (time_us, error, memory, lossless),
        st.floats(1.0, 100.0),
        st.floats(1e-9, 1e-2),
        st.one_of(st.none(), st.integers(0, 100)),
        st.booleans(),
    ),
    max_size=6,
)
LIMITS = st.builds(
    Limits,
    objective=st.sampled_from(Objective),
    max_error=st.one_of(st.none(), st.floats(1e-9, 1e-2)),
    max_latency_us=st.one_of(st.none(), st.floats(1.0, 100.0)),
    max_memory=st.one_of(st.none(), st.integers(0, 100)),
)


@settings(max_examples=100, deadline=None)
@given(ROWS, LIMITS, st.randoms())
def test_the_choice_is_allowed_and_does_not_depend_on_order(given: list[Any], limits: Limits, random: Any) -> None:
    rows = [
        row(rank, time_us, error=error, peak_memory_bytes=memory, lossless=lossless)
        for rank, (time_us, error, memory, lossless) in enumerate(given)
    ]
    chosen = choose(rows, limits)
    shuffled = rows.copy()
    random.shuffle(shuffled)
    assert choose(shuffled, limits) == chosen
    allowed = [candidate for candidate in rows if allows(candidate, limits)]
    assert (chosen is None) == (not allowed)
    if chosen is not None:
        assert chosen in allowed
        if limits.objective in (Objective.LATENCY, Objective.THROUGHPUT):
            assert not any(beats(other.measurement.time_us, chosen.measurement.time_us) for other in allowed)
        if limits.objective is Objective.ERROR:
            assert chosen.measurement.error == min(other.measurement.error for other in allowed)
