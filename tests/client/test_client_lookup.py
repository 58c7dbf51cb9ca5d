"""Lookups: what they answer, that they never raise, and what they leave to report."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from demo import BEST, DEMO, H200, SECOND, TUNED, Hostile, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

from tunedex.client.cache import Stamped
from tunedex.client.client import Client
from tunedex.client.settings import SETTINGS
from tunedex.core.config import Config
from tunedex.core.errors import CannotRun
from tunedex.core.limits import Limits
from tunedex.core.measurement import Policy
from tunedex.core.problem import Problem
from tunedex.core.signature import DefaultRule
from tunedex.core.snapshot import Match, Snapshot


class Shelf:
    """A source in memory: what is put there is what a client gets."""

    name = "shelf"
    origin = "server"
    wait_s = 60.0
    cached = False

    def __init__(self, held: Snapshot | None = None) -> None:
        self.held = held
        self.reports: list[dict[Problem, int]] = []
        self.fails: Exception | None = None

    def fetch(self, device: str, channel: str, revision: int | None, etag: str) -> Stamped | None:
        if self.fails:
            raise self.fails
        if self.held is None or etag == str(self.held.revision):
            return None
        return Stamped(self.held, str(self.held.revision))

    def report(self, device: str, misses: Mapping[Problem, int]) -> bool:
        if self.fails:
            raise self.fails
        self.reports.append(dict(misses))
        return True


def client_of(source: Shelf, **options: Any) -> Client:
    client = Client(source, H200, signatures=[DEMO], **options)
    client.start()
    return client


def test_a_tuned_problem_gets_its_config() -> None:
    answer = client_of(Shelf(snapshot())).lookup("demo", 4096, 512, dtype="bfloat16")
    assert answer.config == BEST
    assert answer.match is Match.EXACT
    assert (answer.revision, answer.time_us, answer.speedup, answer.reason) == (3, 10.0, 3.0, "")
    assert answer.source.device == H200.key


def test_dimensions_go_by_position_or_by_name_and_dtypes_by_alias() -> None:
    client = client_of(Shelf(snapshot()))
    asked = [
        client.lookup("demo", 4096, 512, dtype="bf16"),
        client.lookup("demo", 4096, cols=512, dtype="torch.bfloat16"),
        client.lookup("demo", dtype="bfloat16", cols="512", rows=4096.0),
        client.lookup("demo", rows=4096, cols=512, batch=1, x_dtype="bf16", w_dtype="bf16", gelu="erf"),
    ]
    assert {answer.config for answer in asked} == {BEST}
    assert {answer.match for answer in asked} == {Match.EXACT}


def test_a_call_answered_before_is_the_same_object() -> None:
    client = client_of(Shelf(snapshot()))
    first = client.lookup("demo", 4096, 512, dtype="bfloat16")
    assert client.lookup("demo", 4096, 512, dtype="bfloat16") is first


def test_limits_choose_among_the_rows() -> None:
    held = snapshot()
    rows = held.rows[TUNED.key]
    lossy = replace(rows[0], rank=2, config=Config("triton", {"precision": "tf32"}))
    lossy = replace(lossy, measurement=replace(lossy.measurement, lossless=False, time_us=5.0, error=1e-2))
    client = client_of(Shelf(replace(held, rows={TUNED.key: (*rows, lossy)})))
    assert client.lookup("demo", 4096, 512, dtype="bf16", max_error=0.1).config == lossy.config
    assert client.lookup("demo", 4096, 512, dtype="bf16").config == BEST
    refused = client.lookup("demo", 4096, 512, dtype="bf16", max_latency_us=1.0)
    assert (refused.match, refused.config) == (Match.DEFAULT, Config("triton", {"block": 128}))
    assert "meets" in refused.reason


@pytest.mark.parametrize("policy", [Policy.EAGER_COLD, Policy.GRAPH_COLD])
@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("asked", ["eager", "graph"])
def test_an_answer_tells_its_policy_and_streams_in_a_graph_are_for_who_runs_in_one(
    policy: Policy, streams: int, asked: str
) -> None:
    config = Config("triton", {"streams": streams})
    held = snapshot(config=config)
    best = held.rows[TUNED.key][0]
    best = replace(best, measurement=replace(best.measurement, policy=policy))
    client = client_of(Shelf(replace(held, rows={TUNED.key: (best,)})))
    answer = client.lookup("demo", 4096, 512, dtype="bf16", policy=asked)
    if (policy, streams, asked) == (Policy.GRAPH_COLD, 2, "eager"):
        assert (answer.match, answer.policy) == (Match.DEFAULT, None)
    else:
        assert (answer.match, answer.policy, answer.config) == (Match.EXACT, policy.value, config)


def test_a_problem_that_is_not_tuned_gets_the_default_and_is_reported_as_a_miss() -> None:
    source = Shelf(snapshot())
    client = client_of(source)
    answer = client.lookup("demo", 7, 512, dtype="bfloat16")
    assert (answer.match, answer.config) == (Match.DEFAULT, Config("triton", {"block": 64}))
    assert "not tuned" in answer.reason
    assert client.status().misses == 1
    assert client.report_misses() == 1
    assert source.reports == [{DEMO.problem({"rows": 7, "cols": 512, "dtype": "bfloat16"}): 1}]
    assert client.report_misses() == 0


def test_misses_that_cannot_be_reported_are_kept_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunedex.client.client.SETTINGS", replace(SETTINGS, held_misses=10, reported_misses=4))
    source = Shelf(snapshot())
    client = client_of(source)
    source.fails = CannotRun("away")
    for rows in range(1, 31):
        client.lookup("demo", rows, 512, dtype="bfloat16")
    assert client.report_misses() == 0
    assert client.status().misses == 10
    source.fails = None
    assert [client.report_misses() for _ in range(2)] == [10, 0]
    assert [len(report) for report in source.reports] == [4, 4, 2]


def test_closing_reports_every_miss_however_many_reports_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunedex.client.client.SETTINGS", replace(SETTINGS, reported_misses=4))
    source = Shelf(snapshot())
    with client_of(source) as client:
        for rows in range(1, 31):
            client.lookup("demo", rows, 512, dtype="bfloat16")
    assert sorted(problem.dims["rows"] for report in source.reports for problem in report) == list(range(1, 31))
    assert max(len(report) for report in source.reports) == 4
    assert client.status().misses == 0


def test_what_is_not_reported_in_time_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunedex.client.client.SETTINGS", replace(SETTINGS, reported_misses=4))
    gate = threading.Event()

    class Slow(Shelf):
        def report(self, device: str, misses: Mapping[Problem, int]) -> bool:
            if self.reports:
                gate.wait(60)
            return super().report(device, misses)

    client = client_of(Slow(snapshot()))
    for rows in range(1, 11):
        client.lookup("demo", rows, 512, dtype="bfloat16")
    assert client.report_misses(2.0) == 4
    assert client.status().misses == 6
    assert client.report_misses(0) == 0
    assert client.status().misses == 6
    gate.set()


def test_closing_reports_once() -> None:
    source = Shelf(snapshot())
    with client_of(source) as client:
        client.lookup("demo", 7, 512, dtype="bfloat16")
    client.close()
    assert len(source.reports) == 1
    assert client.lookup("demo", 4096, 512, dtype="bf16").config == BEST


def test_the_memo_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunedex.client.client.SETTINGS", replace(SETTINGS, memo_entries=8))
    client = client_of(Shelf(snapshot()))
    for rows in range(1, 100):
        client.lookup("demo", rows, 512, dtype="bfloat16")
    assert len(client._held.memo) == 8
    assert client.lookup("demo", 4096, 512, dtype="bf16").config == BEST


def test_nothing_to_compute_is_said_and_is_no_miss() -> None:
    client = client_of(Shelf(snapshot()))
    answer = client.lookup("demo", 0, 512, dtype="bfloat16")
    assert answer.match is Match.DEFAULT
    assert "nothing to compute" in answer.reason
    assert client.status().misses == 0


@pytest.mark.parametrize(
    ("kernel", "dims", "parameters", "reason"),
    [
        ("nothing", (), {}, "kernel 'nothing' is unknown; known are demo"),
        (None, (), {}, "kernel None is unknown"),
        (["demo"], (), {}, ""),
        ("demo", (), {"dtype": "bf16"}, "demo needs rows"),
        ("demo", (1,), {"dtype": "bf16"}, "demo needs cols"),
        ("demo", (1, 2, 3), {"dtype": "bf16"}, "has 2 dimensions (rows, cols), not 3"),
        ("demo", (1, 2), {"rows": 1, "dtype": "bf16"}, "rows is given twice"),
        ("demo", (-1, 2), {"dtype": "bf16"}, "rows=-1 is negative"),
        ("demo", (1.5, 2), {"dtype": "bf16"}, "rows=1.5 is not a whole number"),
        ("demo", (True, 2), {"dtype": "bf16"}, "rows=True is not a whole number"),
        ("demo", (2**63, 2), {"dtype": "bf16"}, "over 2^63 - 1"),
        ("demo", ("a", 2), {"dtype": "bf16"}, "rows=a is not a whole number"),
        ("demo", ([1], 2), {"dtype": "bf16"}, "is not a whole number"),
        ("demo", (1, 2), {}, "needs dtype"),
        ("demo", (1, 2), {"dtype": "float99"}, "dtype 'float99' is unknown"),
        ("demo", (1, 2), {"dtype": "bf16", "gelu": "fast"}, "gelu=fast is not a choice"),
        ("demo", (1, 2), {"dtype": "bf16", "depth": 1}, "no parameter 'depth'"),
        ("demo", (1, 2), {"dtype": "bf16", "objective": "luck"}, "objective 'luck' is unknown"),
        ("demo", (1, 2), {"dtype": "bf16", "max_error": float("nan")}, "max_error=nan"),
        ("demo", (1, 2), {"dtype": "bf16", "layout": []}, "layout '[]' is unknown"),
    ],
)
def test_what_cannot_be_answered_gets_a_default_with_the_reason(
    kernel: Any, dims: tuple[Any, ...], parameters: dict[str, Any], reason: str
) -> None:
    client = client_of(Shelf(snapshot()))
    answer = client.lookup(kernel, *dims, **parameters)
    assert answer.match is Match.DEFAULT
    assert reason in answer.reason
    assert answer.config == (Config("triton", {"block": 128}) if kernel == "demo" else None)
    assert client.status().misses == 0


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["bf16", "float32", "erf", "latency", "contiguous", 512, 4096]),
    st.lists(st.integers(), max_size=2),
    st.builds(Hostile),
)
NAMES = ("batch", "rows", "cols", "dtype", "x_dtype", "gelu", "layout", "alignment", "objective", "max_error", "other")


@settings(max_examples=150, deadline=None)
@given(
    kernel=st.one_of(st.just("demo"), ANYTHING),
    dims=st.lists(ANYTHING, max_size=4),
    parameters=st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=6),
)
def test_a_lookup_never_raises(kernel: Any, dims: list[Any], parameters: dict[str, Any]) -> None:
    answer = CLIENT.lookup(kernel, *dims, **parameters)
    assert isinstance(answer.match, Match)
    assert answer.match is Match.EXACT or answer.reason


CLIENT = client_of(Shelf(snapshot()))


def test_a_refresh_replaces_what_answers() -> None:
    source = Shelf(snapshot(3))
    client = client_of(source)
    before = client.lookup("demo", 4096, 512, dtype="bf16")
    assert client.refresh() is False
    source.held = snapshot(4, config=SECOND)
    assert client.lookup("demo", 4096, 512, dtype="bf16") is before
    assert client.refresh() is True
    after = client.lookup("demo", 4096, 512, dtype="bf16")
    assert (after.config, after.revision, client.revision) == (SECOND, 4, 4)


def test_a_source_that_goes_away_leaves_what_is_held() -> None:
    source = Shelf(snapshot())
    client = client_of(source)
    source.fails = CannotRun("shelf does not answer")
    assert client.refresh() is False
    assert client.status().reason == "shelf does not answer"
    assert client.lookup("demo", 4096, 512, dtype="bf16").config == BEST
    source.fails = None
    client.refresh()
    assert client.status().reason == ""


@pytest.mark.parametrize("failure", [ValueError("odd"), RecursionError(), CannotRun("away")])
def test_a_source_may_fail_in_any_way(failure: Exception) -> None:
    source = Shelf()
    source.fails = failure
    client = client_of(source)
    assert client.status().origin == "built-in"
    assert client.lookup("demo", 4096, 512, dtype="bf16").match is Match.DEFAULT


def test_a_source_that_takes_too_long_is_not_waited_for() -> None:
    gate = threading.Event()

    class Slow(Shelf):
        wait_s = 0.05

        def fetch(self, device: str, channel: str, revision: int | None, etag: str) -> Stamped | None:
            gate.wait(60)
            return Stamped(snapshot())

    client = client_of(Slow())
    assert client.status().reason == "no answer within 0.05 s"
    assert client.lookup("demo", 4096, 512, dtype="bf16").match is Match.DEFAULT
    gate.set()


def test_another_devices_answers_are_never_served() -> None:
    other = replace(H200, multiprocessors=114)
    client = client_of(Shelf(snapshot(device=other)))
    answer = client.lookup("demo", 4096, 512, dtype="bf16")
    assert answer.match is Match.DEFAULT
    assert f"holds answers for {other.key}, not for {H200.key}" in answer.reason


def test_a_pinned_client_takes_no_other_revision() -> None:
    source = Shelf(snapshot(4))
    client = client_of(source, revision=3)
    assert client.status().reason == "shelf holds revision 4, not 3"
    source.held = snapshot(3)
    client.refresh()
    assert client.lookup("demo", 4096, 512, dtype="bf16").revision == 3


def test_a_device_that_is_not_known_gets_no_config_and_reports_nothing() -> None:
    source = Shelf(snapshot())
    client = Client(source, None, signatures=[DEMO], trouble="the CUDA driver does not answer: cuInit returns 803")
    client.start()
    answer = client.lookup("demo", 4096, 512, dtype="bf16")
    assert (answer.config, answer.match) == (None, Match.DEFAULT)
    assert "cuInit returns 803" in answer.reason
    client.close()
    assert (client.refresh(), source.reports) == (False, [])


def test_the_rows_of_a_problem_begin_with_what_is_answered() -> None:
    held = snapshot()
    first, second = held.rows[TUNED.key]
    faster = replace(first, rank=2, measurement=replace(first.measurement, time_us=9.9))
    client = client_of(Shelf(replace(held, rows={TUNED.key: (first, second, faster)})))
    assert client.answer(TUNED).config == first.config
    assert client.candidates(TUNED).rows == (first, faster, second)
    assert client.candidates(TUNED, Limits(max_latency_us=11)).rows == (first, faster)
    assert client.status().misses == 0
    assert client.candidates(replace(TUNED, kernel="other")).rows == ()
    assert client.status().misses == 0
    assert client.candidates(replace(TUNED, dims={**TUNED.dims, "rows": 1})).rows == ()
    assert client.status().misses == 1


def test_the_kernels_that_run_here_are_those_installed_whatever_was_published() -> None:
    rule = DefaultRule("cuda", {"implementation": "triton", "width": 1})
    published = replace(DEMO, version="2" * 12, defaults=(rule,))
    held = replace(snapshot(), signatures={"demo": published, "other": replace(published, kernel="other")})
    client = client_of(Shelf(held))
    assert client.lookup("demo", 5000, 512, dtype="bf16").config == Config("triton", {"block": 128})
    assert client.lookup("other", 5000, 512, dtype="bf16").config == Config("triton", {"width": 1})
    exact = client.lookup("demo", 4096, 512, dtype="bf16")
    assert (exact.match, exact.reason) == (Match.EXACT, "")

    rows = tuple(replace(row, kernel_version="2" * 12) for row in held.rows[TUNED.key])
    client = client_of(Shelf(replace(held, rows={TUNED.key: rows})))
    stale = client.lookup("demo", 4096, 512, dtype="bf16")
    assert (stale.match, stale.config) == (Match.EXACT, BEST)
    assert stale.reason == f"measured with kernel version {'2' * 12}, now {DEMO.version}"


def test_an_answer_names_the_reason_of_now() -> None:
    source = Shelf(snapshot())
    client = client_of(source)
    asked = functools.partial(client.lookup, "demo", 7, 512, dtype="bf16")
    source.fails = CannotRun("shelf does not answer")
    client.refresh()
    assert "does not answer" in asked().reason
    assert asked() is asked()
    source.fails = None
    assert client.refresh() is False
    assert "does not answer" not in asked().reason
    source.fails = CannotRun("shelf is locked")
    client.refresh()
    assert "is locked" in asked().reason
