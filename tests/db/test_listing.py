"""Lists a page at a time, and summaries, the same on both kinds of database."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import pytest
from db_examples import DEVICE, ENVIRONMENT, OTHER, problem, row, trial
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tunedex.core.errors import BadInput
from tunedex.core.measurement import Failure, FailureKind
from tunedex.db import Store
from tunedex.db.records import Page, Stage, Sweep


def every(fetch: Callable[[str | None], Page[object]]) -> list[object]:
    """The items of all pages."""
    items, after = [], None
    while True:
        page = fetch(after)
        items += page.items
        if page.next is None:
            return items
        after = page.next


@pytest.fixture
def filled(store: Store) -> Store:
    sweep = store.start_sweep(Sweep(DEVICE.key, ENVIRONMENT.key, {}))
    for number in range(7):
        store.add_trial(trial(number, of=problem(number % 2 + 1), sweep=sweep if number < 3 else None))
    store.add_trial(trial(7, Failure(FailureKind.TIMEOUT), of=problem(3, "layernorm"), stage=Stage.FINAL))
    store.publish(DEVICE.key, {problem(n): [row(64), row(32, 12.0, rank=1)] for n in (1, 2)})
    store.publish(DEVICE.key, {problem(3, "layernorm"): [row(16)], problem(1): [row(128)]})
    store.publish(OTHER.key, {problem(1): [row(8)]})
    store.add_misses(DEVICE.key, {problem(n): n for n in (1, 2, 3)})
    store.start_sweep(Sweep(OTHER.key, ENVIRONMENT.key, {}))
    return store


@pytest.mark.parametrize("limit", [1, 2, 3, 8, 1000])
def test_pages_together_are_the_whole_list(filled: Store, limit: int) -> None:
    blocks = [item.config.values["block"] for item in every(lambda after: filled.list_trials(after=after, limit=limit))]
    assert blocks == [7, 6, 5, 4, 3, 2, 1, 0]
    bests = every(lambda after: filled.list_bests(channel="candidate", after=after, limit=limit))
    assert [(best.device, best.problem.kernel, best.row.config.values["block"]) for best in bests] == [
        (OTHER.key, "softmax", 8),
        (DEVICE.key, "layernorm", 16),
        (DEVICE.key, "softmax", 64),
        (DEVICE.key, "softmax", 128),
    ]
    misses = every(lambda after: filled.list_misses(after=after, limit=limit))
    assert sorted(miss.count for miss in misses) == [1, 2, 3]
    assert [s.device for s in every(lambda after: filled.list_sweeps(after=after, limit=limit))] == [
        OTHER.key,
        DEVICE.key,
    ]


def test_a_page_does_not_shift_when_rows_are_added(filled: Store) -> None:
    first = filled.list_trials(limit=3)
    filled.add_trial(trial(99))
    second = filled.list_trials(limit=3, after=first.next)
    assert [item.config.values["block"] for item in first.items + second.items] == [7, 6, 5, 4, 3, 2]


def test_trials_are_filtered(filled: Store) -> None:
    def blocks(**filters: object) -> list[object]:
        return [item.config.values["block"] for item in filled.list_trials(**filters).items]  # type: ignore[arg-type]

    sweep = filled.list_sweeps(DEVICE.key).items[0].id
    assert blocks(sweep=sweep) == [2, 1, 0]
    assert blocks(kernel="layernorm") == blocks(status="timeout") == blocks(stage="final") == [7]
    assert blocks(problem=problem(2).key) == [5, 3, 1]
    assert blocks(status="measured", sweep=sweep, problem=problem(1).key) == [2, 0]
    assert blocks(device=OTHER.key) == blocks(kernel="nothing") == []


def test_bests_are_of_a_channel(filled: Store) -> None:
    offered = {best.row.config.values["block"] for best in filled.list_bests(DEVICE.key, "softmax").items}
    assert offered == ({64, 128} if filled.embedded else set())
    filled.promote(revision=1)
    assert {best.row.config.values["block"] for best in filled.list_bests(DEVICE.key, "softmax").items} == {64}
    assert filled.list_bests(kernel="layernorm").items == []
    (best,) = filled.list_bests(DEVICE.key, "layernorm", channel="candidate").items
    assert (best.since, best.until, best.row) == (2, None, row(16))


def test_devices_are_summed_up(filled: Store) -> None:
    other, gpu = filled.devices()
    assert (gpu.device, gpu.environments, gpu.kernels, gpu.problems, gpu.trials) == (DEVICE, 1, 2, 3, 8)
    assert gpu.last_measured == max(item.created_at for item in filled.list_trials().items if item.created_at)
    assert (other.device, other.environments, other.kernels, other.problems, other.trials) == (OTHER, 0, 1, 1, 0)
    assert other.last_measured is not None
    assert other.last_measured.isoformat() == "2026-01-31T12:00:00.500000+00:00"


@pytest.mark.parametrize("limit", [0, -1, 1001, 2**70])
def test_a_limit_is_from_1_to_1000(store: Store, limit: int) -> None:
    for fetch in (store.list_bests, store.list_trials, store.list_sweeps, store.list_misses):
        with pytest.raises(BadInput, match="not from 1 to 1000") as caught:
            fetch(limit=limit)
        assert caught.value.field == "limit"


def test_a_wrong_status_or_stage_names_the_choices(store: Store) -> None:
    with pytest.raises(BadInput, match="known are measured, compile_error"):
        store.list_trials(status="lost")
    with pytest.raises(BadInput, match="known are search, final"):
        store.list_trials(stage="lost")


def token(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "after", ["", "x", "é", "====", token(None), token([]), token(["1"]), token([True]), token([2**63]), token([1, 2])]
)
def test_after_is_the_next_of_a_page(store: Store, after: str) -> None:
    for fetch in (store.list_bests, store.list_trials, store.list_sweeps, store.list_misses):
        with pytest.raises(BadInput, match="is not the `next`") as caught:
            fetch(after=after)
        assert caught.value.field == "after"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(after=st.one_of(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(token)))
def test_any_after_gives_a_page_or_one_line(sqlite_store: Store, after: str) -> None:
    try:
        page = sqlite_store.list_bests(after=after)
    except BadInput as error:
        message = str(error)
    else:
        message = ""
        assert page == Page([])
    assert "\n" not in message
