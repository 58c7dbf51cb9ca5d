"""The rules for the best, each by an example, then over any trials."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from db_examples import DEVICE, ENVIRONMENT, VERSION, config, measurement, problem
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tunedex.core.config import Config
from tunedex.core.limits import Limits, Objective
from tunedex.core.measurement import Failure, FailureKind, Measurement, Policy
from tunedex.core.row import MARGIN, Row, allows, beats, choose, memory_of
from tunedex.db.records import Stage, Trial
from tunedex.db.selection import MAX_ROWS, select

DEFAULT = config(0)
LIBRARY = Config("library", {"call": "cublas"})


def tried(what: int | Config, outcome: float | Measurement | Failure, stage: Stage = Stage.FINAL) -> Trial:
    return Trial(
        problem=problem(),
        device=DEVICE.key,
        environment=ENVIRONMENT.key,
        kernel_version=VERSION,
        config=config(what) if isinstance(what, int) else what,
        outcome=measurement(float(outcome)) if isinstance(outcome, int | float) else outcome,
        stage=stage,
        created_at=datetime(2026, 1, 31, tzinfo=UTC),
    )


def searched(what: int | Config, outcome: float | Measurement | Failure) -> Trial:
    return tried(what, outcome, Stage.SEARCH)


def choice(
    finals: list[Trial],
    incumbent: list[Row] | None = None,
    search: list[Trial] | None = None,
    default: Config | None = DEFAULT,
) -> list[Row]:
    return select(
        finals, search or [], incumbent or [], default=default, share=lambda row: 5.0 / row.measurement.time_us
    )


def test_the_fastest_wins_when_it_beats_default_and_library_by_the_margin() -> None:
    rows = choice([tried(DEFAULT, 100), tried(LIBRARY, 95), tried(1, 90), tried(2, 92)])
    assert rows[0].config == config(1)
    assert (rows[0].default_us, rows[0].library_us, rows[0].roofline_share) == (100, 95, 5 / 90)
    assert rows[0].measured_at == "2026-01-31T00:00:00.000000Z"
    assert [row.rank for row in rows] == list(range(len(rows)))


def test_within_the_margin_the_faster_of_default_and_library_is_the_best() -> None:
    assert choice([tried(DEFAULT, 100), tried(LIBRARY, 110), tried(1, 98.5)])[0].config == DEFAULT
    assert choice([tried(DEFAULT, 100), tried(LIBRARY, 91), tried(1, 90)])[0].config == LIBRARY
    assert choice([tried(DEFAULT, 100), tried(1, 102)])[0].config == DEFAULT


def test_the_best_library_config_is_the_library_call() -> None:
    other = Config("library", {"call": "cublaslt"})
    rows = choice([tried(DEFAULT, 100), tried(LIBRARY, 95), tried(other, 80), tried(1, 90)])
    assert rows[0].config == other
    assert rows[0].library_us == 80


def test_without_default_and_library_the_fastest_is_the_best() -> None:
    rows = choice([tried(1, 99.5), tried(2, 100)], default=None)
    assert rows[0].config == config(1)
    assert (rows[0].default_us, rows[0].library_us) == (None, None)


def test_the_incumbent_stays_unless_beaten_by_the_margin() -> None:
    before = choice([tried(DEFAULT, 100), tried(1, 90)])
    close = choice([tried(DEFAULT, 100), tried(1, 90), tried(2, 89)], before)
    assert close[0].config == config(1)
    clear = choice([tried(DEFAULT, 100), tried(1, 90), tried(2, 88)], before)
    assert clear[0].config == config(2)


def test_an_incumbent_timed_again_is_judged_by_its_new_time() -> None:
    before = choice([tried(DEFAULT, 100), tried(1, 80)])
    rows = choice([tried(DEFAULT, 100), tried(1, 95), tried(2, 90)], before)
    assert rows[0].config == config(2)


def test_an_incumbent_that_was_not_timed_again_keeps_its_row() -> None:
    before = choice([tried(DEFAULT, 100), tried(1, 80)])
    assert choice([tried(DEFAULT, 101), tried(2, 90)], before)[0] == before[0]


def test_an_incumbent_of_another_environment_counts_with_its_new_time() -> None:
    before = [replace(row, environment="other") for row in choice([tried(DEFAULT, 100), tried(1, 50)])]
    rows = choice([tried(DEFAULT, 100), tried(1, 90), tried(2, 89)], before)
    assert rows[0].config == config(1)
    assert rows[0].measurement.time_us == 90
    assert {row.environment for row in rows} == {ENVIRONMENT.key}
    assert choice([tried(DEFAULT, 100), tried(1, 90), tried(2, 88)], before)[0].config == config(2)


def test_an_incumbent_of_another_environment_that_was_not_timed_again_goes() -> None:
    before = [replace(row, kernel_version="other") for row in choice([tried(DEFAULT, 100), tried(1, 50)])]
    assert {row.config for row in choice([tried(DEFAULT, 100), tried(2, 90)], before)} == {DEFAULT, config(2)}


def test_a_config_that_failed_when_it_was_last_tried_goes() -> None:
    before = choice([tried(DEFAULT, 100), tried(1, 50)])
    early = replace(searched(1, 50), created_at=datetime(2026, 1, 1, tzinfo=UTC))
    late = replace(searched(1, Failure(FailureKind.CRASH)), created_at=datetime(2026, 2, 1, tzinfo=UTC))
    assert [row.config for row in choice([tried(DEFAULT, 100)], before, [early, late])] == [DEFAULT]
    assert [row.config for row in choice([], before, [late, early])] == [DEFAULT]
    wrong = [replace(late, config=row.config) for row in before]
    assert choice([], before, wrong) == []
    # What failed once and passed later is served.
    again = replace(searched(1, 50), created_at=datetime(2026, 3, 1, tzinfo=UTC))
    assert choice([tried(DEFAULT, 100), tried(1, 50)], before, [early, late, again])[0].config == config(1)


def test_the_last_word_is_what_was_stored_last_though_the_clock_was_set_back() -> None:
    failed = replace(searched(1, Failure(FailureKind.CRASH)), id=1, created_at=datetime(2026, 2, 1, tzinfo=UTC))
    passed = replace(searched(1, 50), id=2, created_at=datetime(2026, 1, 1, tzinfo=UTC))
    final = [tried(DEFAULT, 100), tried(1, 50)]
    assert choice(final, [], [failed, passed])[0].config == config(1)
    assert choice(final, [], [replace(failed, id=2), replace(passed, id=1)])[0].config == DEFAULT


def test_an_incumbent_slower_than_what_the_user_has_goes() -> None:
    before = choice([tried(DEFAULT, 100), tried(1, 90)])
    assert choice([tried(DEFAULT, 89.5), tried(1, 90)], before)[0].config == DEFAULT
    assert choice([tried(DEFAULT, 100), tried(LIBRARY, 89.5), tried(1, 90)], before)[0].config == LIBRARY


def test_an_incumbent_that_now_fails_goes() -> None:
    before = choice([tried(DEFAULT, 100), tried(1, 50)])
    wrong = tried(1, Failure(FailureKind.WRONG_RESULT))
    rows = choice([tried(DEFAULT, 100), wrong], before)
    assert [row.config for row in rows] == [DEFAULT]
    assert [row.config for row in choice([wrong], before)] == [DEFAULT]


def test_a_final_that_was_disturbed_takes_no_incumbents_place() -> None:
    incumbent = choice([tried(DEFAULT, 100), tried(1, 90)])
    disturbed = [replace(tried(what, time_us), contended=True) for what, time_us in ((DEFAULT, 80), (1, 85), (2, 40))]
    assert choice(disturbed, incumbent) == incumbent
    assert choice(disturbed)[0].config == config(2)
    for change in ({"environment": "another"}, {"kernel_version": "another"}):
        old = [replace(row, **change) for row in incumbent]  # type: ignore[arg-type]
        assert choice(disturbed, old) == old
    warm = [replace(row, measurement=replace(row.measurement, policy=Policy.EAGER_WARM)) for row in incumbent]
    assert choice(disturbed, warm) == warm
    imported = [replace(row, source="imported") for row in incumbent]
    assert choice(disturbed, imported)[0].config == config(2)
    quiet = [replace(trial, contended=False) for trial in disturbed]
    assert choice(quiet, incumbent)[0].config == config(2)


def test_a_config_that_fails_in_a_disturbed_final_goes_all_the_same() -> None:
    incumbent = choice([tried(DEFAULT, 100), tried(1, 90)])
    failed = replace(tried(1, Failure(FailureKind.CRASH)), contended=True)
    rows = choice([replace(tried(DEFAULT, 80), contended=True), failed], incumbent)
    assert [row.config for row in rows] == [DEFAULT]


def test_a_final_without_a_measurement_leaves_things_as_they_were() -> None:
    before = choice([tried(DEFAULT, 100), tried(1, 50), tried(2, 60)])
    assert choice([], before) == before
    assert choice([tried(3, Failure(FailureKind.CRASH))], before) == before
    assert choice([]) == []


def test_an_incumbent_of_another_environment_version_or_policy_is_not_compared() -> None:
    (mine,) = choice([tried(1, 10)])
    for other in (
        replace(mine, environment="another"),
        replace(mine, kernel_version="another"),
        replace(mine, measurement=measurement(10, policy=Policy.GRAPH_COLD)),
    ):
        assert [row.config for row in choice([tried(DEFAULT, 100)], [other])] == [DEFAULT]


def test_an_imported_row_never_outranks_a_local_one() -> None:
    imported = replace(choice([tried(1, 10)])[0], source="imported")
    assert [row.config for row in choice([tried(DEFAULT, 100), tried(2, 99)], [imported])] == [DEFAULT, config(2)]
    assert choice([], [imported]) == [imported]


def test_times_of_another_policy_are_not_compared() -> None:
    graph = measurement(1, policy=Policy.GRAPH_COLD)
    rows = choice([tried(DEFAULT, 100), tried(1, 90)], search=[searched(2, graph)])
    assert {row.config for row in rows} == {DEFAULT, config(1)}


def test_a_lossy_config_is_never_the_best_and_answers_whom_it_may() -> None:
    lossy = measurement(40, error=1e-3, lossless=False)
    rows = choice([tried(DEFAULT, 100), tried(1, 90), tried(2, lossy)])
    assert rows[0].config == config(1)
    answer = choose(rows, Limits(max_error=1e-2))
    assert answer is not None
    assert answer.config == config(2)
    alone = choice([tried(2, lossy)], default=None)
    assert alone[0].config == config(2)
    assert choose(alone) is None


def test_several_streams_in_a_graph_are_for_whoever_runs_in_a_graph() -> None:
    streams = Config("triton", {"streams": 2})
    graph = [
        tried(what, measurement(time_us, policy=Policy.GRAPH_COLD))
        for what, time_us in ((DEFAULT, 100), (1, 90), (streams, 60))
    ]
    rows = choice(graph)
    assert rows[0].config == config(1)
    answer = choose(rows, Limits(policy="graph"))
    assert answer is not None
    assert answer.config == streams


def test_the_pareto_set_of_the_search_is_published_too() -> None:
    lean = measurement(120, memory=0)
    exact = measurement(130, error=1e-9, memory=100)
    wasteful = measurement(140, error=1e-3, memory=200)
    rows = choice(
        [tried(DEFAULT, measurement(100, memory=100))],
        search=[searched(1, lean), searched(2, exact), searched(3, wasteful)],
    )
    assert [row.config for row in rows] == [DEFAULT, config(1), config(2), config(3)]


def test_a_time_of_the_search_does_not_outdo_the_final() -> None:
    rows = choice([tried(DEFAULT, 100), tried(1, 90)], search=[searched(2, 50), searched(1, 40)])
    assert [row.config for row in rows] == [config(1), DEFAULT]


def test_a_lossy_time_of_the_search_does_not_outdo_a_lossy_config_of_the_final() -> None:
    def lossy(time_us: float, error: float = 1e-3) -> Measurement:
        return measurement(time_us, error=error, lossless=False)

    rows = choice(
        [tried(DEFAULT, 100), tried(1, lossy(40))], search=[searched(2, lossy(30)), searched(3, lossy(60, error=1e-4))]
    )
    assert [row.config for row in rows] == [DEFAULT, config(1), config(3)]


def test_the_pareto_set_is_published_whole_and_runners_up_fill_what_is_left() -> None:
    def front(count: int) -> list[Trial]:
        return [tried(n, measurement(100 + n, error=1e-6 / n)) for n in range(1, count + 1)]

    runners_up = [searched(100 + n, measurement(200 + n, error=1e-5)) for n in range(MAX_ROWS)]
    small = choice(front(4), search=runners_up, default=None)
    assert [row.config for row in small] == [config(n) for n in (1, 2, 3, 4, *range(100, 100 + MAX_ROWS - 4))]
    large = choice(front(3 * MAX_ROWS), search=runners_up, default=None)
    assert [row.config for row in large] == [config(n) for n in range(1, 3 * MAX_ROWS + 1)]


def test_who_pins_bits_has_the_best_config_that_gives_them() -> None:
    crowd = [searched(10 + n, 110 + n) for n in range(MAX_ROWS)]
    lean = searched(4, measurement(300, bits="beef", memory=0, error=1e-5))
    rows = choice(
        [
            tried(DEFAULT, measurement(100, memory=8)),
            tried(LIBRARY, measurement(200, bits="beef", memory=8, error=1e-5)),
        ],
        search=[*crowd, lean],
    )
    assert lean.config in {row.config for row in rows}
    pinned = choose(rows, Limits(same_bits="beef", max_memory=0))
    assert pinned is not None
    assert pinned.config == lean.config


def test_the_incumbents_bits_are_still_served_when_another_is_the_best() -> None:
    before = choice([tried(DEFAULT, 100), tried(1, measurement(90, bits="beef"))])
    crowd = [tried(10 + n, 50 + n) for n in range(MAX_ROWS)]
    rows = choice([tried(DEFAULT, 100), tried(1, measurement(91, bits="beef")), *crowd], before)
    assert rows[0].config == config(10)
    pinned = choose(rows, Limits(same_bits="beef"))
    assert pinned is not None
    assert (pinned.config, pinned.measurement.time_us) == (config(1), 91)


def test_several_finals_of_one_config_count_as_their_median() -> None:
    rows = choice([tried(DEFAULT, 100), *(tried(1, time_us) for time_us in (10, 95, 96)), tried(2, 94)])
    assert rows[0].config == config(2)


def test_default_and_library_are_kept_however_slow_they_are() -> None:
    rows = choice(
        [tried(DEFAULT, 1000), tried(LIBRARY, 900), *(tried(n, 100 + n) for n in range(1, 40))],
    )
    assert len(rows) == MAX_ROWS
    assert {DEFAULT, LIBRARY} <= {row.config for row in rows}
    assert [row.config for row in rows[:3]] == [config(1), config(2), config(3)]


times = st.one_of(st.floats(50, 150), st.sampled_from([98.0, 99.0, 100.0, 102.0]))
measured = st.builds(
    measurement,
    times,
    error=st.sampled_from([0.0, 1e-8, 1e-7, 1e-3]),
    lossless=st.booleans(),
    memory=st.sampled_from([None, 0, 10, 20]),
    policy=st.sampled_from([Policy.EAGER_COLD, Policy.EAGER_COLD, Policy.GRAPH_COLD]),
)
outcomes = st.one_of(measured, measured, measured, st.just(Failure(FailureKind.WRONG_RESULT)))
configs = st.one_of(
    st.integers(0, 8).map(config),
    st.integers(0, 2).map(lambda call: Config("library", {"call": call})),
    st.integers(2, 4).map(lambda streams: Config("triton", {"streams": streams})),
)
#: What the user has, and measurements that any caller may be served.
owned = st.sampled_from([DEFAULT, LIBRARY, Config("library", {"call": 0})])
serving = st.builds(measurement, times, memory=st.sampled_from([None, 0, 10]))
finals = st.lists(st.builds(tried, configs, outcomes), max_size=14)
searches = st.lists(st.builds(searched, configs, outcomes), max_size=14)
MANY = settings(max_examples=150, deadline=None)


@MANY
@given(finals, searches, finals, st.randoms(use_true_random=False))
def test_order_does_not_matter(now: list[Trial], search: list[Trial], before: list[Trial], dice: random.Random) -> None:
    incumbent = choice(before)
    rows = choice(now, incumbent, search)
    for trials in (now, search, incumbent):
        dice.shuffle(trials)
    assert choice(now, incumbent, search) == rows


@MANY
@given(finals, searches, finals)
def test_ranks_are_complete_and_hold_no_config_twice_and_none_that_fails(
    now: list[Trial], search: list[Trial], before: list[Trial]
) -> None:
    rows = choice(now, choice(before), search)
    failed = {trial.config for trial in now if isinstance(trial.outcome, Failure)}
    assert [row.rank for row in rows] == list(range(len(rows)))
    assert len(rows) <= MAX_ROWS
    assert len({row.config for row in rows}) == len(rows)
    assert not failed & {row.config for row in rows}
    assert len({row.measurement.policy for row in rows}) <= 1


@MANY
@given(finals, searches, finals)
def test_the_first_is_what_a_caller_without_limits_is_given(
    now: list[Trial], search: list[Trial], before: list[Trial]
) -> None:
    rows = choice(now, choice(before), search)
    assert choose(rows) in (None, *rows[:1])


@MANY
@given(finals, st.lists(st.builds(tried, owned, serving), min_size=1, max_size=3), searches, finals)
def test_the_best_is_never_slower_than_default_or_library(
    others: list[Trial], known: list[Trial], search: list[Trial], before: list[Trial]
) -> None:
    now = [*known, *others]
    rows = choice(now, choice(before), search)
    best = choose(rows)
    assume(best is not None)
    assert best is not None
    policy = best.measurement.policy
    timed = {t.config for t in now if isinstance(t.outcome, Measurement) and t.outcome.policy is policy}
    compared = [
        row for row in rows if row.config in timed and (row.config == DEFAULT or row.config.library) and choose([row])
    ]
    assume(compared)  # not where what the user has failed, or was timed under another policy
    assert best.measurement.time_us <= min(row.measurement.time_us for row in compared)


#: What was accepted in a final, one measurement each of many configs.
accepted = st.lists(
    st.tuples(
        st.integers(1, 60),
        st.sampled_from([1, 1, 2]),
        st.builds(
            measurement,
            st.floats(50, 150),
            error=st.sampled_from([1e-8, 3e-8, 1e-7, 3e-7, 1e-3]),
            lossless=st.booleans(),
            memory=st.sampled_from([None, 0, 10, 20]),
            policy=st.just(Policy.GRAPH_COLD),
            bits=st.sampled_from("abc"),
        ),
    ),
    min_size=1,
    max_size=40,
    unique_by=lambda item: item[0],
)
asked = st.builds(
    Limits,
    objective=st.sampled_from(Objective),
    max_error=st.sampled_from([None, None, 3e-8, 1e-7, 1e-2]),
    max_latency_us=st.one_of(st.none(), st.floats(50, 150)),
    max_memory=st.sampled_from([None, None, 0, 10]),
    policy=st.sampled_from(["eager", "graph"]),
)


@MANY
@given(accepted, searches, finals, asked, asked)
def test_what_is_published_serves_every_caller_as_well_as_all_that_was_accepted(
    measured: list[tuple[int, int, Measurement]],
    search: list[Trial],
    before: list[Trial],
    limits: Limits,
    earlier: Limits,
) -> None:
    now = [tried(Config("triton", {"block": block, "streams": streams}), m) for block, streams, m in measured]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tunedex.db.selection.MAX_ROWS", 3)  # cuts wherever something may be cut
        rows = choice(now, choice(before), search)
    final = [
        Row(0, trial.config, trial.outcome, VERSION, ENVIRONMENT.key)
        for trial in now
        if isinstance(trial.outcome, Measurement)
    ]
    answered = choose(rows, earlier)
    for bits in (None, answered.measurement.output_hash if answered else None):  # who has an answer can pin its bits
        limits = replace(limits, same_bits=bits)
        allowed = [row for row in final if allows(row, limits)]
        if not allowed:
            continue
        chosen = choose(rows, limits)
        assert chosen is not None
        if limits.objective is Objective.ERROR:
            assert chosen.measurement.error <= min(row.measurement.error for row in allowed)
        elif limits.objective is Objective.MEMORY:
            assert memory_of(chosen) <= min(map(memory_of, allowed))
        else:
            assert not beats(min(row.measurement.time_us for row in allowed), chosen.measurement.time_us)


@MANY
@given(finals, searches)
def test_the_same_trials_again_change_nothing(now: list[Trial], search: list[Trial]) -> None:
    rows = choice(now, [], search)
    assert choice(now, rows, search) == rows


@MANY
@given(st.floats(50, 150), st.floats(50, 150))
def test_the_margin_holds_exactly(incumbent_us: float, challenger_us: float) -> None:
    before = choice([tried(1, incumbent_us)], default=None)
    rows = choice([tried(1, incumbent_us), tried(2, challenger_us)], before, default=None)
    assert (rows[0].config == config(2)) == (challenger_us < incumbent_us * (1 - MARGIN))
