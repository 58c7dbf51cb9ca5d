"""GET /v1/recommend: the batch that it names, that a snapshot gives the same, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from tunedex.core.recommend import read_item, recommend
from tunedex.core.snapshot import Snapshot

GPU_KEY = "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"
ASKED = {"kernel": "scale_rows", "device": GPU_KEY, "rows": 512, "cols": 256, "dtype": "bf16"}


@pytest.fixture
def batches(site: Any, problem: Any, publish: Any) -> Any:
    """A site where the problem of 512 rows is published at three batches."""
    for batch, time_us in ((1, 10.0), (4, 20.0), (16, 100.0)):
        publish(site.store, time_us, of=problem(512, batch=batch), block=batch)
    return site


@pytest.mark.parametrize(
    ("parameters", "batch", "items_per_s"),
    [
        ({}, 1, 1e5),
        ({"objective": "throughput"}, 4, 2e5),
        ({"objective": "throughput", "max_latency_us": 15}, 1, 1e5),
        ({"objective": "error"}, 1, 1e5),
        ({"channel": "candidate", "objective": "throughput"}, 4, 2e5),
        ({"revision": 2, "objective": "throughput"}, 1, 1e5),
    ],
    ids=str,
)
def test_the_batch_that_suits_the_objective(
    batches: Any, parameters: dict[str, Any], batch: int, items_per_s: float
) -> None:
    reply = batches.get("/v1/recommend", {**ASKED, **parameters})

    assert reply.status_code == 200, reply.text
    document = reply.json()
    assert (document.pop("batch"), document.pop("items_per_s")) == (batch, items_per_s)
    address = {name: value for name, value in parameters.items() if name in ("channel", "revision")}
    assert document == batches.lookup(rows=512, batch=batch, **address).json()


def test_a_problem_never_tuned_is_answered_with_the_default_and_counted_as_a_miss(batches: Any) -> None:
    document = batches.get("/v1/recommend", {**ASKED, "rows": 7}).json()

    assert (document["batch"], document["items_per_s"], document["match"]) == (1, None, "default")
    assert document["config"] == {"implementation": "triton", "block": 128}
    assert "is not tuned at any batch" in document["reason"]
    metrics = batches.get("/metrics").text
    assert 'tunedex_lookups_total{match="default"} 1.0' in metrics


@pytest.mark.parametrize(
    ("parameters", "status", "kind", "field"),
    [
        ({"batch": 4}, 422, "bad-input", "batch"),
        ({"batch": 1}, 422, "bad-input", "batch"),
        ({"rows": 0}, 422, "bad-input", "rows"),
        ({"objective": "beauty"}, 422, "bad-input", "objective"),
        ({"max_latency_us": "soon"}, 422, "bad-input", "max_latency_us"),
        ({"depth": 1}, 422, "bad-input", "depth"),
        ({"device": ""}, 422, "bad-input", "device"),
        ({"kernel": "nope"}, 404, "unknown-kernel", "kernel"),
        ({"revision": 99}, 404, "unknown-revision", "revision"),
    ],
    ids=str,
)
def test_bad_input_is_a_problem_document(
    quiet_site: Any, parameters: dict[str, Any], status: int, kind: str, field: str
) -> None:
    reply = quiet_site.get("/v1/recommend", {**ASKED, **parameters})

    document = reply.json()
    assert (reply.status_code, reply.headers["content-type"]) == (status, "application/problem+json")
    assert (document["type"], document["instance"]) == (f"/problems#{kind}", "/v1/recommend")
    assert document["errors"][0]["field"] == field


def test_whoever_holds_the_snapshot_gets_the_same_recommendation(batches: Any) -> None:
    held = Snapshot.from_dict(batches.get("/v1/snapshot", {"device": GPU_KEY}).json())
    for more in ({}, {"objective": "throughput"}, {"max_latency_us": "1"}, {"objective": "memory"}):
        flat = {"rows": "512", "cols": "256", "dtype": "bf16", **more}
        item = read_item(held.signature("scale_rows"), flat)
        offline = recommend(held, item.problem, item.limits).to_dict()
        assert batches.get("/v1/recommend", {**ASKED, **more}).json() == offline
