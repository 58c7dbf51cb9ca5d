"""POST /v1/lookup:batch: many questions, each answered or refused alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

GPU_KEY = "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"


def query(rows: Any = 1024, **other: Any) -> dict[str, Any]:
    return {"kernel": "scale_rows", "dims": {"rows": rows, "cols": 256}, "dtype": "bfloat16", **other}


def ask(site: Any, *queries: Any, **other: Any) -> Any:
    return site.post("/v1/lookup:batch", {"device": GPU_KEY, "queries": list(queries), **other})


def test_items_come_in_the_order_of_the_queries(quiet_site: Any) -> None:
    items = ask(quiet_site, query(2048), query(7), query(1024)).json()["items"]

    assert [item["config"]["block"] for item in items] == [256, 128, 64]
    assert [item["match"] for item in items] == ["exact", "default", "exact"]


def test_a_query_gets_the_answer_that_a_lookup_gets(quiet_site: Any) -> None:
    forms = [
        query(),
        query(dtype=None, dtypes={"x": "bf16", "weight": "bfloat16"}),
        query(attributes={"mode": "plain"}, layout="contiguous", alignment=16, objective="latency"),
        query("1024"),
        query(1024.0),
    ]

    for item in ask(quiet_site, *forms).json()["items"]:
        assert item == quiet_site.lookup().json()


def test_a_query_carries_its_own_limits(quiet_site: Any) -> None:
    items = ask(quiet_site, query(max_latency_us=9), query(same_bits="b17532", max_error=0.5)).json()["items"]

    assert [item["config"]["block"] for item in items] == [128, 32]


@pytest.mark.parametrize(
    ("bad", "status", "kind"),
    [
        (query(0), 422, "bad-input"),
        (query(-1), 422, "bad-input"),
        (query(True), 422, "bad-input"),
        (query(None), 422, "bad-input"),
        (query([1]), 422, "bad-input"),
        (query(2**63), 422, "bad-input"),
        (query(10**300), 422, "bad-input"),
        (query(kernel="nope"), 404, "unknown-kernel"),
        (query(kernel=None), 422, "bad-input"),
        (query(kernel=["softmax"]), 422, "bad-input"),
        (query(kernel="\ud800"), 404, "unknown-kernel"),
        (query(dims=[1024, 256]), 422, "bad-input"),
        (query(dims={"mode": "plain", "rows": 1, "cols": 1}), 422, "bad-input"),
        (query(attributes={"mode": None}), 422, "bad-input"),
        (query(dtypes={"residual": "bf16"}), 422, "bad-input"),
        (query(max_error=10**400), 422, "bad-input"),
        (query(max_error={}), 422, "bad-input"),
        (query(speed="high"), 422, "bad-input"),
        (query(rows=1024) | {"\ud800": 1}, 422, "bad-input"),
        ("softmax", 422, "bad-input"),
        (None, 422, "bad-input"),
    ],
)
def test_a_bad_query_is_refused_alone(quiet_site: Any, bad: Any, status: int, kind: str) -> None:
    reply = ask(quiet_site, query(), bad, query(2048))

    assert reply.status_code == 200
    first, refused, last = reply.json()["items"]
    assert (first["config"]["block"], last["config"]["block"]) == (64, 256)
    assert (refused["status"], refused["type"]) == (status, f"/problems#{kind}")
    assert refused["instance"] == "/v1/lookup:batch#/queries/1"


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"device": GPU_KEY, "queries": []}, "queries"),
        ({"device": GPU_KEY, "queries": [query()] * 1001}, "queries"),
        ({"device": GPU_KEY}, "queries"),
        ({"queries": [query()]}, "device"),
        ({"device": "my-gpu", "queries": [query()]}, "device"),
        ({"device": GPU_KEY, "queries": [query()], "channel": "beta"}, "channel"),
        ({"device": GPU_KEY, "queries": [query()], "revision": True}, "revision"),
        ({"device": GPU_KEY, "queries": [query()], "revision": False}, "revision"),
        ({"device": GPU_KEY, "queries": [query()], "revision": -1}, "revision"),
        ({"device": GPU_KEY, "queries": [query()], "mode": "x"}, "mode"),
        ({"device": GPU_KEY, "queries": {"0": query()}}, "queries"),
    ],
)
def test_a_bad_request_is_refused_whole(quiet_site: Any, document: Any, field: str) -> None:
    reply = quiet_site.post("/v1/lookup:batch", document)

    assert reply.status_code == 422
    assert reply.headers["content-type"] == "application/problem+json"
    assert [error["field"] for error in reply.json()["errors"]] == [field]


def test_a_thousand_queries_are_answered(quiet_site: Any) -> None:
    items = ask(quiet_site, *[query(rows) for rows in range(1, 1001)]).json()["items"]

    assert len(items) == 1000
    assert {item["config"]["block"] for item in items} == {128}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
PARTS = ["kernel", "dims", "attributes", "dtypes", "dtype", "layout", "alignment", "objective", "max_memory"]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(st.sampled_from(PARTS), JSON, max_size=4), min_size=1, max_size=4))
def test_no_query_breaks_the_server(quiet_site: Any, changes: list[dict[str, Any]]) -> None:
    reply = ask(quiet_site, *[{**query(), **change} for change in changes])

    assert reply.status_code == 200, reply.text
    assert len(reply.json()["items"]) == len(changes)
    assert all(item.get("status", 200) in (200, 404, 422) for item in reply.json()["items"])
