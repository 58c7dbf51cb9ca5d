"""Recommendations of a client: the batch, and that asking never raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from demo import BEST, DEMO, H200, TUNED, Hostile, row, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

import tunedex
from tunedex.client.cache import Stamped
from tunedex.client.client import Client
from tunedex.core.config import Config
from tunedex.core.errors import CannotRun
from tunedex.core.limits import Limits, Objective
from tunedex.core.problem import Problem
from tunedex.core.recommend import Recommendation, recommend
from tunedex.core.snapshot import Match, Snapshot

ITEM = {"rows": 4096, "cols": 512, "dtype": "bf16"}


def held() -> Snapshot:
    """What `snapshot` holds, with the same problem tuned at batch 8 as well."""
    large = TUNED.at_batch(8)
    one = snapshot()
    return Snapshot(
        one.device,
        one.channel,
        one.revision,
        one.signatures,
        {**one.problems, large.key: large},
        {**one.rows, large.key: (row(0, BEST, 40.0),)},
    )


class Shelf:
    """A source in memory that has one snapshot, or none."""

    name = "shelf"
    origin = "server"
    wait_s = 60.0
    cached = False

    def __init__(self, found: Snapshot | None) -> None:
        self.found = found
        self.reports: list[dict[Problem, int]] = []

    def fetch(self, device: str, channel: str, revision: int | None, etag: str) -> Stamped | None:
        if self.found is None:
            raise CannotRun("shelf is empty")
        return Stamped(self.found, "1")

    def report(self, device: str, misses: Mapping[Problem, int]) -> bool:
        self.reports.append(dict(misses))
        return True


def client_of(found: Snapshot | None) -> Client:
    client = Client(Shelf(found), H200, signatures=[DEMO])
    client.start()
    return client


def test_the_same_as_from_the_snapshot() -> None:
    client = client_of(held())
    assert client.recommend("demo", 4096, 512, dtype="bf16").batch == 1
    found = client.recommend("demo", **ITEM, objective="throughput")
    assert found == recommend(held(), TUNED, Limits(Objective.THROUGHPUT))
    assert (found.batch, found.items_per_s, found.answer.config) == (8, 2e5, BEST)
    assert client.recommend("demo", **ITEM, objective="throughput", max_latency_us=39).batch == 1
    assert client.status().misses == 0


def test_what_is_not_tuned_gets_the_default_for_one_item_and_is_reported_as_a_miss() -> None:
    client = client_of(held())
    found = client.recommend("demo", 7, 512, dtype="bfloat16")
    assert (found.batch, found.items_per_s, found.answer.match) == (1, None, Match.DEFAULT)
    assert found.answer.config == Config("triton", {"block": 64})
    assert client.report_misses() == 1
    assert client.source.reports == [{DEMO.problem({"rows": 7, "cols": 512, "dtype": "bfloat16"}): 1}]  # type: ignore[attr-defined]


def test_why_the_source_is_away_is_said() -> None:
    found = client_of(None).recommend("demo", **ITEM)
    assert found.answer.reason.endswith("; shelf is empty")


@pytest.mark.parametrize(
    ("kernel", "parameters", "reason"),
    [
        ("demo", {**ITEM, "batch": 8}, "batch=8 is given"),
        ("demo", {**ITEM, "rows": 0}, "nothing to compute"),
        ("demo", {**ITEM, "objective": "luck"}, "objective 'luck' is unknown"),
        ("demo", {"rows": 1}, "demo needs cols"),
        ("nothing", ITEM, "kernel 'nothing' is unknown"),
        (["demo"], ITEM, "TypeError while reading the arguments"),
    ],
)
def test_what_cannot_be_answered_gets_a_default_with_the_reason(
    kernel: Any, parameters: dict[str, Any], reason: str
) -> None:
    client = client_of(held())
    found = client.recommend(kernel, **parameters)
    assert (found.batch, found.answer.match) == (1, Match.DEFAULT)
    assert reason in found.answer.reason
    assert found.answer.config == (Config("triton", {"block": 128}) if kernel == "demo" else None)
    assert client.status().misses == 0


ANYTHING = st.one_of(
    st.none(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(["bf16", 512, 4096]), st.builds(Hostile)
)
NAMES = ("batch", "rows", "cols", "dtype", "objective", "max_error", "max_memory", "other")


@settings(max_examples=100, deadline=None)
@given(
    kernel=st.one_of(st.just("demo"), ANYTHING),
    dims=st.lists(ANYTHING, max_size=4),
    parameters=st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=6),
)
def test_a_recommendation_never_raises(kernel: Any, dims: list[Any], parameters: dict[str, Any]) -> None:
    found = CLIENT.recommend(kernel, *dims, **parameters)
    assert isinstance(found, Recommendation)
    assert found.answer.match is Match.EXACT or found.answer.reason


CLIENT = client_of(held())


@pytest.mark.usefixtures("fresh_settings")
def test_the_process_asks_the_default_client() -> None:
    found = tunedex.recommend("softmax", 64, 128, dtype="float32", objective="throughput", device="cpu-plain-2c-avx2")
    assert isinstance(found, tunedex.Recommendation)
    assert (found.batch, found.answer.match) == (1, Match.DEFAULT)
    assert found.answer.config is not None
    assert tunedex.recommend("softmax", device="no device").answer.match is Match.DEFAULT
