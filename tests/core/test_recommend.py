"""Which batch is recommended, and the answer that goes with it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from core_examples import H200, SIGNATURE, problem, row, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.errors import BadInput, UnknownKernel
from tunedex.core.limits import NO_LIMITS, Limits, Objective
from tunedex.core.measurement import Policy
from tunedex.core.problem import Problem
from tunedex.core.recommend import Recommendation, read_item, recommend
from tunedex.core.row import MARGIN, Row, allows, memory_of
from tunedex.core.snapshot import Match, Snapshot

THROUGHPUT = Limits(Objective.THROUGHPUT)
FLAT = {"rows": 8, "cols": 16, "dtype": "fp32"}


def tuned(batches: dict[int, list[Row]], *others: Problem) -> Snapshot:
    """A snapshot with rows for `problem` at each batch; ``others`` have a row that is the best at everything."""
    rows = {problem(batch=batch).key: tuple(group) for batch, group in batches.items()}
    rows |= {other.key: (row(0, 0.001, error=0.0),) for other in others}
    problems = [*(problem(batch=batch) for batch in batches), *others]
    return Snapshot(H200, "stable", 7, {SIGNATURE.kernel: SIGNATURE}, {p.key: p for p in problems}, rows)


def timed(**times_us: float) -> Snapshot:
    """A snapshot with one row at each batch: ``timed(b1=10.0, b8=40.0)``."""
    return tuned({int(name[1:]): [row(0, time_us)] for name, time_us in times_us.items()})


def test_latency_takes_the_shortest_call_and_throughput_the_most_items_a_second() -> None:
    held = timed(b1=10.0, b4=20.0, b16=80.0)
    assert recommend(held, problem()).batch == 1
    fastest = recommend(held, problem(), THROUGHPUT)
    assert (fastest.batch, fastest.answer.time_us, fastest.items_per_s) == (4, 20.0, 2e5)


def test_the_answer_is_that_of_a_lookup_at_the_batch() -> None:
    held = tuned({1: [row(0, 10.0)], 8: [row(0, 40.0, default_us=80.0), row(1, 30.0, lossless=False, error=1e-3)]})
    found = recommend(held, problem(), THROUGHPUT)
    assert found == Recommendation(8, held.answer(problem(batch=8)))
    assert (found.answer.match, found.answer.speedup, found.answer.revision) == (Match.EXACT, 2.0, 7)
    lossy = recommend(held, problem(), Limits(Objective.THROUGHPUT, max_error=1e-2))
    assert (lossy.batch, lossy.answer.time_us) == (8, 30.0)
    assert list(found.to_dict()) == ["batch", "items_per_s", *found.answer.to_dict()]
    assert json.loads(json.dumps(found.to_dict()))["items_per_s"] == 2e5


@pytest.mark.parametrize(
    ("limits", "batch"),
    [
        (THROUGHPUT, 16),
        (Limits(Objective.THROUGHPUT, max_latency_us=64.0), 16),
        (Limits(Objective.THROUGHPUT, max_latency_us=63.9), 4),
        (Limits(Objective.THROUGHPUT, max_latency_us=15.0), 1),
        (Limits(Objective.THROUGHPUT, max_memory=4000), 4),
        (Limits(Objective.THROUGHPUT, max_memory=0), 1),
        (Limits(Objective.THROUGHPUT, max_error=5e-8), 4),
        (Limits(Objective.ERROR), 4),
        (Limits(Objective.MEMORY), 1),
        (Limits(Objective.MEMORY, max_error=5e-8), 4),
    ],
    ids=str,
)
def test_limits_bound_the_call_with_all_its_items(limits: Limits, batch: int) -> None:
    held = tuned(
        {
            1: [row(0, 10.0, error=2e-7, peak_memory_bytes=0)],
            4: [row(0, 20.0, error=3e-8, peak_memory_bytes=1000)],
            16: [row(0, 64.0, error=1e-7, peak_memory_bytes=5000)],
        }
    )
    assert recommend(held, problem(), limits).batch == batch


def test_less_than_the_margin_goes_to_the_smaller_batch() -> None:
    assert MARGIN == 0.02
    assert recommend(timed(b1=10.0, b2=19.7), problem(), THROUGHPUT).batch == 1
    assert recommend(timed(b1=10.0, b2=19.5), problem(), THROUGHPUT).batch == 2
    # Each of these is within the margin of the next, and only the largest two of the best.
    assert recommend(timed(b1=10.0, b2=19.7, b4=38.8, b8=76.5), problem(), THROUGHPUT).batch == 4
    assert recommend(timed(b2=10.0, b1=10.1), problem()).batch == 1
    equal = tuned({1: [row(0, peak_memory_bytes=None)], 2: [row(0, peak_memory_bytes=None)]})
    assert recommend(equal, problem(), Limits(Objective.MEMORY)).batch == 1


def test_only_the_batch_may_differ() -> None:
    others = [problem(rows=9), problem(batch=8, form="centred"), problem(batch=8, dtype="bfloat16")]
    others += [problem(batch=8, weight_dtype="bfloat16"), problem(batch=8, layout="strided")]
    others += [problem(batch=8, alignment=4)]
    held = tuned({1: [row(0, 10.0)]}, *others)
    for objective in Objective:
        assert recommend(held, problem(), Limits(objective)).batch == 1


def test_where_one_item_was_not_tuned_other_batches_answer() -> None:
    assert recommend(timed(b4=20.0), problem()).batch == 4


def test_times_with_a_cold_and_a_warm_cache_are_not_compared() -> None:
    held = tuned(
        {
            1: [row(0, 1.0, policy=Policy.EAGER_WARM)],
            2: [row(0, 20.0, policy=Policy.GRAPH_COLD)],
            4: [row(0, 36.0, policy=Policy.EAGER_COLD)],
        }
    )
    assert recommend(held, problem()).batch == 2
    assert recommend(held, problem(), THROUGHPUT).answer.policy == "eager-cold"
    assert recommend(held, problem(), Limits(max_latency_us=5.0)).answer.policy == "eager-warm"


def test_several_streams_in_a_graph_are_for_whoever_runs_in_a_graph() -> None:
    streams = row(1, 10.0, config=Config("triton", {"streams": 4}), policy=Policy.GRAPH_COLD)
    held = tuned({1: [row(0, 10.0, policy=Policy.GRAPH_COLD)], 4: [row(0, 40.0, policy=Policy.GRAPH_COLD), streams]})
    assert recommend(held, problem(), THROUGHPUT).batch == 1
    in_graph = recommend(held, problem(), Limits(Objective.THROUGHPUT, policy="graph"))
    assert (in_graph.batch, in_graph.answer.config) == (4, streams.config)


def test_what_is_not_tuned_gets_the_default_for_one_item_and_why() -> None:
    found = recommend(tuned({}), problem(), THROUGHPUT)
    assert (found.batch, found.items_per_s, found.answer.match) == (1, None, Match.DEFAULT)
    assert found.answer.config == snapshot().answer(problem()).config
    assert found.answer.reason == (
        f"norm:rows=8,cols=16,form=plain,dtype=float32 is not tuned at any batch on {H200.key}"
    )
    bounded = recommend(timed(b1=10.0, b2=15.0), problem(), Limits(max_latency_us=1.0))
    assert (bounded.batch, bounded.answer.match) == (1, Match.DEFAULT)
    assert bounded.answer.reason == 'none of the 2 tuned batches meets {"max_latency_us":1}'


def test_a_device_without_a_default_gets_no_config() -> None:
    held = snapshot(device=Device.from_key("name:Some_NPU"))
    assert recommend(held, problem()).answer.config is None


def test_a_kernel_that_has_no_batch_is_answered_as_it_is() -> None:
    lone = Problem("norm", {"rows": 8}, {}, {"x": "float32"})
    held = Snapshot(H200, "stable", 7, {"norm": SIGNATURE}, {lone.key: lone}, {lone.key: (row(0, 5.0),)})
    found = recommend(held, lone, THROUGHPUT)
    assert (found.batch, found.answer.match, found.items_per_s) == (1, Match.EXACT, 2e5)


def test_an_unknown_kernel_is_told() -> None:
    with pytest.raises(UnknownKernel, match="kernel 'other' is unknown"):
        recommend(snapshot(), Problem("other", {"n": 1}, {}, {"x": "float32"}))


class TestReading:
    def test_a_problem_of_one_item_and_limits(self) -> None:
        item = read_item(SIGNATURE, {**FLAT, "objective": "throughput", "max_latency_us": "50"})
        assert (item.problem, item.limits) == (problem(), Limits(Objective.THROUGHPUT, max_latency_us=50.0))
        assert read_item(SIGNATURE, FLAT).limits == NO_LIMITS

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"batch": 4}, "batch=4 is given, and the batch is what is recommended; leave it out"),
            ({"batch": "auto"}, "batch=auto is given"),
            ({"rows": 0}, "nothing to compute"),
            ({"objective": "speed"}, "objective 'speed' is unknown"),
            ({"depth": 2}, "norm has no parameter 'depth'"),
        ],
        ids=str,
    )
    def test_what_is_wrong_is_named(self, wrong: dict[str, Any], message: str) -> None:
        with pytest.raises(BadInput, match=message) as caught:
            read_item(SIGNATURE, {**FLAT, **wrong})
        assert caught.value.field == next(iter(wrong))


rows = st.builds(
    lambda time_us, error, memory, lossless: row(0, time_us, error=error, peak_memory_bytes=memory, lossless=lossless),
    st.floats(1.0, 100.0),
    st.floats(1e-9, 1e-2),
    st.one_of(st.none(), st.integers(0, 100)),
    st.booleans(),
)
asked = st.builds(
    Limits,
    objective=st.sampled_from(Objective),
    max_error=st.one_of(st.none(), st.floats(1e-9, 1e-2)),
    max_latency_us=st.one_of(st.none(), st.floats(1.0, 100.0)),
    max_memory=st.one_of(st.none(), st.integers(0, 100)),
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.integers(1, 64), rows, max_size=6), asked, st.randoms())
def test_no_batch_is_better_by_more_than_the_margin_and_none_smaller_as_good(
    given: dict[int, Row], limits: Limits, random: Any
) -> None:
    def cost(batch: int) -> float:
        measured = given[batch].measurement
        return {
            Objective.LATENCY: measured.time_us,
            Objective.THROUGHPUT: measured.time_us / batch,
            Objective.ERROR: measured.error,
            Objective.MEMORY: memory_of(given[batch]),
        }[limits.objective]

    found = recommend(tuned({batch: [each] for batch, each in given.items()}), problem(), limits)
    shuffled = list(given.items())
    random.shuffle(shuffled)
    assert recommend(tuned({batch: [each] for batch, each in shuffled}), problem(), limits) == found
    allowed = {batch for batch, each in given.items() if allows(each, limits)}
    if not allowed:
        assert (found.batch, found.answer.match) == (1, Match.DEFAULT)
        return
    assert found.batch in allowed
    least = min(map(cost, allowed))
    close = {batch for batch in allowed if not least < cost(batch) * (1 - MARGIN)}
    assert found.batch == min(close)
