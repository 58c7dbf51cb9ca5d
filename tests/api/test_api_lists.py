"""The list endpoints: pages, filters, and what an item says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tunedex.api.schemas import CurvesReply
from tunedex.db.records import Stage

GPU_KEY = "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"
LISTS = ["devices", "kernels", "bests", "trials", "sweeps", "misses"]


def walk(site: Any, name: str, limit: int, **filters: Any) -> list[dict[str, Any]]:
    """All items of a list, a page at a time."""
    items: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    while True:
        document = site.get(f"/v1/{name}", {"limit": limit, **filters, **after}).json()
        assert set(document) == {"items", "next"}
        assert len(document["items"]) <= limit
        items += document["items"]
        if document["next"] is None:
            return items
        after = {"after": document["next"]}


@pytest.mark.parametrize("name", LISTS)
def test_an_empty_database_has_empty_lists(empty_site: Any, name: str) -> None:
    document = empty_site.get(f"/v1/{name}").json()

    assert document["next"] is None
    assert bool(document["items"]) == (name == "kernels")  # the built-in ones are known from the start


@pytest.mark.parametrize("name", LISTS)
def test_pages_make_the_whole_list(site: Any, publish: Callable[..., int], name: str) -> None:
    publish(site.store, 3.0, rows=64)
    for rows in (3, 5, 7):
        site.lookup(rows=rows)

    whole = walk(site, name, 1000)

    assert len(whole) >= 1
    assert walk(site, name, 1) == whole
    assert walk(site, name, 2) == whole


def test_a_device_says_what_is_known_of_it(quiet_site: Any) -> None:
    (device,) = quiet_site.get("/v1/devices").json()["items"]

    assert (device["key"], device["name"], device["family"]) == (GPU_KEY, "NVIDIA H200", "hopper")
    assert device["shared_memory_bytes"] == 227 * 1024
    assert (device["environments"], device["kernels"], device["problems"], device["trials"]) == (1, 1, 2, 2)
    assert device["last_measured"].endswith("Z")


def test_a_kernel_is_its_signature(quiet_site: Any, scale: Any) -> None:
    kernels = {item["kernel"]: item for item in quiet_site.get("/v1/kernels").json()["items"]}

    assert kernels["scale_rows"] == scale.to_dict()
    assert list(kernels) == sorted(kernels)


def test_a_best_is_a_row_with_its_problem(quiet_site: Any) -> None:
    bests = quiet_site.get("/v1/bests", {"device": GPU_KEY, "kernel": "scale_rows"}).json()["items"]

    assert [best["config"]["block"] for best in bests] == [64, 256]
    best = bests[0]
    assert best["device"] == {"key": GPU_KEY}
    assert best["problem"]["dims"] == {"batch": 1, "rows": 1024, "cols": 256}
    assert best["environment"]["torch"] == "2.13.0"
    assert (best["measurement"]["time_us"], best["speedup"], best["roofline_share"]) == (10.0, 1.5, 0.75)
    assert (best["since"], best["until"], best["rank"]) == (1, None, 0)


def test_a_trial_is_a_measurement_or_a_failure(quiet_site: Any) -> None:
    failed, measured = quiet_site.get("/v1/trials").json()["items"]  # newest first

    assert failed["measurement"] is None
    assert failed["failure"] == {"kind": "wrong_result", "detail": "y[3] is 7, not 8"}
    assert measured["failure"] is None
    assert (measured["max_error"], failed["max_error"]) == (0.01, None)
    assert measured["measurement"]["policy"] == "eager-cold"
    assert (measured["stage"], measured["device"]["key"]) == ("final", GPU_KEY)


def test_a_sweep_says_how_it_ended(quiet_site: Any) -> None:
    (sweep,) = quiet_site.get("/v1/sweeps").json()["items"]

    assert (sweep["status"], sweep["options"], sweep["device"]) == ("done", {"preset": "quick"}, {"key": GPU_KEY})
    assert sweep["started_at"] <= sweep["ended_at"]
    assert sweep["limits"] == {
        "objective": "memory",
        "max_error": 0.01,
        "max_latency_us": None,
        "max_memory": 1 << 20,
        "policy": "graph",
        "same_bits": None,
    }


def test_a_sweep_s_curves(quiet_site: Any) -> None:
    reply = quiet_site.get("/v1/sweeps/1/curves").json()

    (curve,) = reply["curves"]
    assert reply["sweep"] == 1
    assert curve["problem"]["dims"] == {"batch": 1, "rows": 1024, "cols": 256}
    assert (curve["trials"], curve["points"]) == (1, [])  # what was measured was measured in a final


def test_the_curves_of_a_sweep_that_has_found_something(site: Any) -> None:
    (number,) = (sweep.id for sweep in site.store.list_sweeps().items)
    trial = next(trial for trial in site.store.list_trials(status="measured").items)
    site.store.add_trials([replace(trial, id=None, sweep=number, stage=Stage.SEARCH)])
    reply = site.get(f"/v1/sweeps/{number}/curves").json()
    (point,) = next(curve["points"] for curve in reply["curves"])
    assert point["best_us"] == trial.outcome.time_us
    assert point["config"] == trial.config.to_dict()
    CurvesReply.model_validate(reply, strict=True)


@pytest.mark.parametrize(
    ("number", "status", "kind"),
    [
        ("7", 404, "unknown-sweep"),
        (str(2**63 - 1), 404, "unknown-sweep"),
        (str(2**63), 422, "bad-input"),
        ("0", 422, "bad-input"),
        ("x", 422, "bad-input"),
    ],
)
def test_the_curves_of_no_sweep(quiet_site: Any, number: str, status: int, kind: str) -> None:
    reply = quiet_site.get(f"/v1/sweeps/{number}/curves")
    assert reply.status_code == status
    assert reply.json()["type"].endswith(kind)
    assert "number" in reply.json()["detail"] or number in reply.json()["detail"]


@pytest.mark.parametrize(
    ("path", "filters", "count"),
    [
        ("bests", {"kernel": "softmax"}, 0),
        ("bests", {"device": "cpu-a-1c-none"}, 0),
        ("bests", {"channel": "candidate"}, 2),
        ("trials", {"status": "measured"}, 1),
        ("trials", {"status": "wrong_result"}, 1),
        ("trials", {"status": "oom"}, 0),
        ("trials", {"stage": "search"}, 1),
        ("trials", {"kernel": "scale_rows"}, 2),
        ("trials", {"kernel": "softmax"}, 0),
        ("trials", {"sweep": 1}, 2),
        ("trials", {"sweep": 2}, 0),
        ("trials", {"sweep": 2**63 - 1}, 0),
        ("trials", {"problem": "0" * 32}, 0),
        ("sweeps", {"device": "cpu-a-1c-none"}, 0),
    ],
)
def test_a_filter_narrows_the_list(quiet_site: Any, path: str, filters: dict[str, Any], count: int) -> None:
    reply = quiet_site.get(f"/v1/{path}", filters)

    assert reply.status_code == 200, reply.text
    assert len(reply.json()["items"]) == count


def test_trials_of_one_problem(quiet_site: Any) -> None:
    key = quiet_site.get("/v1/bests").json()["items"][0]["problem"]["key"]

    assert len(quiet_site.get("/v1/trials", {"problem": key}).json()["items"]) == 2


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize(
    "parameters", [{"limit": 0}, {"limit": 1001}, {"limit": "x"}, {"colour": "red"}, {"limit": [1, 2]}]
)
def test_a_wrong_parameter_is_refused(quiet_site: Any, name: str, parameters: dict[str, Any]) -> None:
    reply = quiet_site.get(f"/v1/{name}", parameters)

    assert (reply.status_code, reply.headers["content-type"]) == (422, "application/problem+json")
    assert reply.json()["errors"][0]["field"] in parameters


@pytest.mark.parametrize("name", ["bests", "trials", "sweeps", "misses"])
@pytest.mark.parametrize("after", ["", "x", "W10", "e30", "WyJhIl0", "é"])
def test_a_page_that_does_not_exist_is_refused(quiet_site: Any, name: str, after: str) -> None:
    assert quiet_site.get(f"/v1/{name}", {"after": after}).status_code == 422


@pytest.mark.parametrize(
    "parameters",
    [{"status": "sad"}, {"stage": "x"}, {"sweep": -1}, {"sweep": 2**63}, {"problem": "x"}, {"kernel": "\0"}],
)
def test_a_wrong_filter_of_trials_is_refused(quiet_site: Any, parameters: dict[str, Any]) -> None:
    assert quiet_site.get("/v1/trials", parameters).status_code == 422
