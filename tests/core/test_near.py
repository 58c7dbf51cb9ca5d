"""The ranking for a problem that was never tuned."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from core_examples import H200, SIGNATURE, problem, row, snapshot
from hypothesis import given
from hypothesis import strategies as st

from tunedex.core.config import Config
from tunedex.core.limits import Limits
from tunedex.core.measurement import Policy
from tunedex.core.problem import Problem
from tunedex.core.row import MARGIN, Row
from tunedex.core.settings import NEARNESS
from tunedex.core.signature import Dimension
from tunedex.core.snapshot import Answer, Match, Snapshot

LIBRARY = Config("library")
#: The default of a small problem on the device.
DEFAULT = Config("triton", {"block": 2})


def config(block: int) -> Config:
    return Config("triton", {"block": block})


def tuned(times: Mapping[Problem, Mapping[Config, float]], **more: Any) -> Snapshot:
    """A snapshot that holds these times, in microseconds, by problem and config."""
    rows: dict[str, tuple[Row, ...]] = {}
    for each, listed in times.items():
        order = sorted(listed, key=lambda c: (listed[c], c.key))
        rows[each.key] = tuple(row(rank, listed[c], config=c, **more) for rank, c in enumerate(order))
    return replace(snapshot(), problems={each.key: each for each in times}, rows=rows)


def at(sizes: Sequence[int], **times: float) -> dict[Problem, dict[Config, float]]:
    """The same times, by block (``b16=3.0``), for rows of ``sizes``."""
    listed = {config(int(name.removeprefix("b"))): time for name, time in times.items()}
    return {problem(rows=size): listed for size in sizes}


def answer(held: Snapshot, *, limits: Limits | None = None, **asked: Any) -> Answer:
    return held.answer(problem(**asked), limits or Limits())


def test_what_is_best_on_the_neighbours_is_served_with_distance_and_reason() -> None:
    found = answer(tuned(at([64, 512], b2=20.0, b16=10.0)), rows=128)
    assert (found.match, found.config, found.distance) == (Match.NEAR, config(16), 1.0)
    assert found.reason == (
        f"norm:rows=128,cols=16,form=plain,dtype=float32 is not tuned on {H200.key}; "
        "ranked by 2 tuned problems, the nearest with rows 64"
    )
    assert (found.time_us, found.speedup, found.error, found.policy) == (None, None, None, None)
    assert (found.source.kind, found.source.device) == ("local", H200.key)


def test_near_the_best_on_all_neighbours_beats_best_on_the_nearest_alone() -> None:
    times = {
        problem(rows=60): {config(16): 10.0, config(32): 10.5, DEFAULT: 30.0},
        problem(rows=256): {config(16): 20.0, config(32): 10.0, DEFAULT: 30.0},
    }
    assert answer(tuned(times), rows=100).config == config(32)


def test_the_default_and_the_library_give_way_only_to_what_is_faster_by_more_than_the_margin() -> None:
    for kept in (DEFAULT, LIBRARY):
        for slower, served in ((1 + MARGIN / 2, kept), (1 + 2 * MARGIN, config(16))):
            times = {config(16): 10.0, kept: 10.0 * slower}
            found = answer(tuned({problem(rows=64): times, problem(rows=256): times}), rows=128)
            assert (found.match, found.config) == (Match.NEAR, served)


@pytest.mark.parametrize(
    ("sizes", "asked", "served"),
    [
        ([64, 256], 128, True),
        ([64], 128, False),  # nothing larger
        ([256], 128, False),  # nothing smaller
        ([64, 256], 100, False),  # more ragged than both
        ([60, 256], 100, True),  # 60 and 100 are both multiples of 4
        ([60, 256], 102, False),
        ([1024, 8192], 4096, True),
    ],
)
def test_only_what_was_verified_around_the_request_is_served(sizes: list[int], asked: int, served: bool) -> None:
    found = answer(tuned(at(sizes, b16=10.0, b2=30.0)), rows=asked)
    assert found.match is (Match.NEAR if served else Match.DEFAULT)
    if not served:
        assert "none of its configs was verified at smaller and at larger sizes and at ones as ragged" in found.reason


def test_verification_counts_by_the_config_and_beyond_the_bound_too() -> None:
    times: dict[Problem, dict[Config, float]] = {
        problem(rows=2): {config(16): 5.0},
        problem(rows=64): {config(32): 10.0, config(16): 11.0, DEFAULT: 30.0},
        problem(rows=256): {config(16): 20.0, DEFAULT: 30.0},
    }
    # 32 is the best of the neighbours together with nothing larger behind it; 16 passed at 2, 64 and 256.
    found = tuned(times).candidates(problem(rows=66))
    assert found.rows[0].config == config(16)
    assert config(32) not in [each.config for each in found.rows]


def test_the_library_needs_no_proof() -> None:
    times = {LIBRARY: 10.0, config(16): 20.0, DEFAULT: 30.0}
    found = answer(tuned({problem(rows=64): times}), rows=100)
    assert (found.match, found.config, found.expected_loss) == (Match.NEAR, LIBRARY, None)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"cols": 17}, "the tuned problem that is most like it has cols 16, which must be the same"),
        ({"form": "centred"}, "has form plain, which"),
        ({"dtype": "bfloat16"}, "has x_dtype float32 and weight_dtype float32, which"),
        ({"layout": "strided"}, "has layout contiguous, which"),
        ({"alignment": 4}, "has alignment 16, which"),
        ({"rows": 256 * 8}, "the nearest tuned problem, with rows 256, is 3 doublings away, more than 2"),
        ({"rows": 256, "batch": 5}, "the nearest tuned problem, with rows 256, is 2.32 doublings away, more than 2"),
    ],
    ids=str,
)
def test_the_default_says_field_by_field_what_is_too_far(asked: dict[str, Any], words: str) -> None:
    found = answer(tuned(at([64, 256], b16=10.0, b2=20.0)), **{"rows": 128, **asked})
    assert found.match is Match.DEFAULT
    assert words in found.reason


@pytest.mark.parametrize("more", [{"kernel_version": "f" * 12}, {"source": "imported"}, {"lossless": False}], ids=str)
def test_rows_of_other_versions_imported_and_lossy_ones_answer_for_no_neighbour(more: dict[str, Any]) -> None:
    found = answer(tuned(at([64, 256], b16=10.0, b2=20.0), **more), rows=128)
    assert found.match is Match.DEFAULT
    assert "has no config of this kernel version that meets what is asked" in found.reason


def test_who_bears_an_error_gets_what_keeps_it_on_all_neighbours() -> None:
    held = tuned(at([64, 256], b16=10.0, b2=20.0), lossless=False, error=1e-3)
    assert answer(held, rows=128, limits=Limits(max_error=1e-2)).match is Match.NEAR
    assert answer(held, rows=128, limits=Limits(max_error=1e-4)).match is Match.DEFAULT


@pytest.mark.parametrize(
    "asked", [{"max_latency_us": 1e9}, {"max_memory": 2**40}, {"same_bits": "00ff"}, {"objective": "error"}], ids=str
)
def test_what_only_a_measurement_tells_has_no_near_answer(asked: dict[str, Any]) -> None:
    found = answer(tuned(at([64, 256], b16=10.0, b2=20.0)), rows=128, limits=Limits.read(asked))
    assert found.match is Match.DEFAULT
    assert f"only a measurement of it tells about {next(iter(asked))}" in found.reason


def test_a_problem_that_is_tuned_but_meets_no_limit_is_not_answered_by_its_neighbours() -> None:
    held = tuned(at([64, 128, 256], b16=10.0), lossless=False, error=0.5)
    assert answer(held, rows=128).reason == "none of the 1 tuned configs meets {}"


def test_divisible_sizes_answer_for_sizes_that_divide_alike() -> None:
    dimensions = (Dimension("batch", "free", 1), Dimension("rows", "divisible(64)"), Dimension("cols", "exact"))
    held = replace(
        tuned(at([64, 256, 4096], b16=10.0, b2=20.0)),
        signatures={"norm": replace(SIGNATURE, dimensions=dimensions)},
    )
    assert answer(held, rows=128).match is Match.NEAR
    assert re.search(r"has rows (64|256|4096), which must be the same", answer(held, rows=250).reason)
    assert answer(held, rows=250).match is Match.DEFAULT


class TestExpectedLoss:
    def test_it_is_what_leaving_one_out_shows_and_never_nothing(self) -> None:
        found = answer(tuned(at([64, 256], b16=10.0, b2=20.0)), rows=128)
        assert found.expected_loss == pytest.approx(MARGIN / 3)

    def test_it_counts_what_the_others_would_have_lost(self) -> None:
        times = {
            problem(rows=64): {config(16): 10.0, config(32): 12.0, DEFAULT: 30.0},
            problem(rows=256): {config(32): 10.0, config(16): 13.0, DEFAULT: 30.0},
        }
        # 64 is answered by 32, 20 % slower there; 256 by 16, 30 % slower.
        assert answer(tuned(times), rows=128).expected_loss == pytest.approx((0.2 + 0.3 + MARGIN) / 3)

    def test_neighbours_nearer_than_the_requests_prove_nothing(self) -> None:
        times = {
            problem(rows=64): {config(16): 10.0, DEFAULT: 30.0},
            problem(rows=68): {config(16): 10.0, DEFAULT: 30.0},
            problem(rows=256): {config(32): 10.0, config(16): 15.0, DEFAULT: 30.0},
        }
        # 128 is at least 0.91 doublings from all, so 64 and 68, which agree, are answered by 256 alone: by 32, which
        # neither lists, so it counts as their slowest. 256 is answered by both.
        expected = (2.0 + 2.0 + 0.5 + MARGIN) / 4
        assert answer(tuned(times), rows=128).expected_loss == pytest.approx(expected)

    def test_one_neighbour_shows_nothing(self) -> None:
        times = {LIBRARY: 10.0, config(16): 20.0}
        assert answer(tuned({problem(rows=64): times}), rows=100).expected_loss is None


SIZES = st.integers(1, 2048)
TIMES = st.dictionaries(st.sampled_from([2**n for n in range(1, 7)]), st.floats(1.0, 1e3), min_size=1, max_size=6)
TABLE = st.dictionaries(st.tuples(st.integers(1, 4), SIZES), TIMES, min_size=1, max_size=8)


@given(table=TABLE, batch=st.integers(1, 4), rows=SIZES, data=st.data())
def test_the_order_of_rows_and_problems_decides_nothing_and_the_bound_is_kept(
    table: dict[tuple[int, int], dict[int, float]], batch: int, rows: int, data: st.DataObject
) -> None:
    times = {
        problem(batch=b, rows=r): {config(block): time for block, time in listed.items()}
        for (b, r), listed in table.items()
    }
    held = tuned(times)
    asked = problem(batch=batch, rows=rows)
    found = held.answer(asked)
    order = data.draw(st.permutations(list(held.rows)))
    shuffled = {key: tuple(data.draw(st.permutations(held.rows[key]))) for key in order}
    other = replace(held, problems={key: held.problems[key] for key in reversed(order)}, rows=shuffled)
    assert other.answer(asked) == found
    assert other.candidates(asked) == held.candidates(asked)

    assert (found.match is Match.EXACT) is (asked in times)
    if found.match is Match.NEAR:
        assert found.distance is not None
        assert 0 < found.distance <= NEARNESS.most_doublings
        assert found.expected_loss is None or 0 < found.expected_loss < math.inf
        listing = [each.dims for each, listed in times.items() if found.config in listed]
        if found.config != held.signatures["norm"].default(asked, H200):
            assert any(each["batch"] <= batch and each["rows"] <= rows for each in listing)
            assert any(each["batch"] >= batch and each["rows"] >= rows for each in listing)


def test_times_of_unlike_policies_and_environments_are_not_compared() -> None:
    held = tuned(at([64, 256], b16=10.0, b2=20.0))
    warm = {key: (*rows, row(2, 1.0, config=config(64), policy=Policy.GRAPH_WARM)) for key, rows in held.rows.items()}
    assert answer(replace(held, rows=warm), rows=128).config == config(16)
