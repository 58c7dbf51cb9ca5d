"""GET /v1/lookup: what it answers, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tunedex.core.catalog import builtin_signatures
from tunedex.core.config import Config
from tunedex.core.limits import Limits
from tunedex.core.measurement import Policy
from tunedex.core.question import read_question
from tunedex.core.snapshot import Snapshot

GPU_KEY = "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"


def test_a_tuned_problem_is_answered_with_its_best(quiet_site: Any) -> None:
    reply = quiet_site.lookup()

    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    answer = reply.json()
    environment = answer["source"].pop("environment")
    assert answer == {
        "config": {"implementation": "triton", "block": 64},
        "match": "exact",
        "distance": 0,
        "reason": "",
        "source": {"device": GPU_KEY, "kind": "local"},
        "time_us": 10.0,
        "speedup": 1.5,
        "error": 1e-3,
        "channel": "stable",
        "revision": 1,
        "policy": "eager-cold",
        "expected_loss": None,
    }
    assert list(quiet_site.store.environments([environment])) == [environment]


def test_a_problem_never_tuned_is_answered_with_the_default_and_why(quiet_site: Any) -> None:
    answer = quiet_site.lookup(rows=7).json()

    assert answer["config"] == {"implementation": "triton", "block": 128}
    assert (answer["match"], answer["source"]["kind"], answer["time_us"]) == ("default", "default", None)
    assert "not tuned" in answer["reason"]


@pytest.mark.parametrize("policy", ["eager-cold", "graph-cold"])
@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("asked", ["eager", "graph"])
def test_an_answer_tells_its_policy_and_streams_in_a_graph_are_for_who_runs_in_one(
    site: Any, publish: Any, policy: str, streams: int, asked: str
) -> None:
    config = Config("triton", {"block": 64, "streams": streams})
    publish(site.store, 5.0, rows=64, policy=Policy(policy), config=config)

    answer = site.lookup(rows=64, policy=asked).json()

    if (policy, streams, asked) == ("graph-cold", 2, "eager"):
        assert (answer["match"], answer["policy"]) == ("default", None)
    else:
        assert (answer["match"], answer["policy"], answer["config"]) == ("exact", policy, config.to_dict())


def test_a_fresh_database_answers_for_every_built_in_kernel(empty_site: Any) -> None:
    for signature in builtin_signatures():
        dims = {d.name: 512 for d in signature.dimensions if d.default is None}
        for device in (GPU_KEY, "cpu-some_model-8c-avx2"):
            parameters = {
                "kernel": signature.kernel,
                "device": device,
                "dtype": signature.operands[0].dtypes[0],
                **dims,
            }
            reply = empty_site.get("/v1/lookup", parameters)
            assert reply.status_code == 200, reply.text
            assert reply.json()["match"] == "default"
            assert reply.json()["config"]["implementation"]
            assert reply.json()["revision"] == 0


@pytest.mark.parametrize(
    ("parameters", "block"),
    [
        ({"dtype": "bf16"}, 64),
        ({"dtype": "torch.bfloat16"}, 64),
        ({"dtype": None, "x_dtype": "bfloat16", "weight_dtype": "bfloat16"}, 64),
        ({"dtype": "float32", "x_dtype": "bfloat16"}, 128),  # another problem: the weight is float32
        ({"mode": "plain"}, 64),
        ({"mode": "signed"}, 128),
        ({"batch": 1}, 64),
        ({"batch": 2}, 128),
        ({"layout": "contiguous", "alignment": 16}, 64),
        ({"layout": "strided"}, 128),
        ({"alignment": 2}, 128),
        ({"objective": "latency", "policy": "graph"}, 64),
        ({"max_error": "0.01"}, 64),
        ({"max_latency_us": 10}, 64),
        ({"max_latency_us": 9}, 128),
        ({"max_memory": 0}, 64),
        ({"same_bits": "b17564"}, 64),
        ({"same_bits": "b17532", "max_error": 0.5}, 32),
        ({"same_bits": "b17532"}, 128),  # those bits are not lossless
        ({"channel": "candidate"}, 64),
        ({"revision": 1}, 64),
        ({"revision": 0}, 128),
    ],
)
def test_every_parameter_takes_part_in_the_answer(quiet_site: Any, parameters: dict[str, Any], block: int) -> None:
    reply = quiet_site.lookup(**parameters)

    assert reply.status_code == 200, reply.text
    assert reply.json()["config"]["block"] == block


@pytest.mark.parametrize(
    ("parameters", "status", "kind", "field"),
    [
        ({"kernel": "nope"}, 404, "unknown-kernel", "kernel"),
        ({"kernel": None}, 422, "bad-input", "kernel"),
        ({"kernel": ""}, 422, "bad-input", "kernel"),
        ({"rows": None}, 422, "bad-input", "rows"),
        ({"rows": 0}, 422, "bad-input", "rows"),
        ({"rows": -4}, 422, "bad-input", "rows"),
        ({"rows": "many"}, 422, "bad-input", "rows"),
        ({"rows": "1.5"}, 422, "bad-input", "rows"),
        ({"rows": ""}, 422, "bad-input", "rows"),
        ({"rows": 2**63}, 422, "bad-input", "rows"),
        ({"rows": "9" * 400}, 422, "bad-input", "rows"),
        ({"dtype": "float17"}, 422, "bad-input", "dtype"),
        ({"dtype": None}, 422, "bad-input", "dtype"),
        ({"weight_dtype": "int8"}, 422, "bad-input", "weight_dtype"),
        ({"depth": 3}, 422, "bad-input", "depth"),
        ({"mode": "odd"}, 422, "bad-input", "mode"),
        ({"layout": "diagonal"}, 422, "bad-input", "layout"),
        ({"alignment": 3}, 422, "bad-input", "alignment"),
        ({"device": None}, 422, "bad-input", "device"),
        ({"device": "my-gpu"}, 422, "bad-input", "device"),
        ({"device": "nvidia-sm90-132sm-l2_60m-smem_227k-mem_141g"}, 422, "bad-input", "device"),
        ({"device": "name:" + "x" * 300}, 422, "bad-input", "device"),
        ({"device": f"nvidia-sm90-{'9' * 100}sm-l2_60m-smem_227k-mem_140g"}, 422, "bad-input", "device"),
        ({"objective": "beauty"}, 422, "bad-input", "objective"),
        ({"max_error": "nan"}, 422, "bad-input", "max_error"),
        ({"max_latency_us": -1}, 422, "bad-input", "max_latency_us"),
        ({"max_memory": "lots"}, 422, "bad-input", "max_memory"),
        ({"policy": "lazy"}, 422, "bad-input", "policy"),
        ({"channel": "beta"}, 422, "bad-input", "channel"),
        ({"revision": "two"}, 422, "bad-input", "revision"),
        ({"revision": 99}, 404, "unknown-revision", "revision"),
        ({"rows": ["1024", "1024"]}, 422, "bad-input", "rows"),
        ({"mode": "pl\x00ain"}, 422, "bad-input", "mode"),
        ({"mode": "x" * 5000}, 422, "bad-input", "mode"),
    ],
)
def test_bad_input_is_a_problem_document(
    quiet_site: Any, parameters: dict[str, Any], status: int, kind: str, field: str
) -> None:
    reply = quiet_site.lookup(**parameters)

    document = reply.json()
    assert (reply.status_code, document["status"]) == (status, status)
    assert reply.headers["content-type"] == "application/problem+json"
    assert document["type"] == f"/problems#{kind}"
    assert document["instance"] == "/v1/lookup"
    assert document["title"]
    assert 0 < len(document["detail"]) <= 500
    assert "\n" not in document["detail"]
    assert [error["field"] for error in document["errors"]] == [field]


def test_bad_input_stores_nothing(site: Any) -> None:
    before = site.store.counts()

    site.lookup(rows=0)
    site.lookup(rows="x")
    site.lookup(kernel="nope")
    site.get("/v1/misses")  # writes what is counted

    assert site.store.counts() == before


def test_an_answer_that_is_not_exact_is_counted_as_a_miss(site: Any) -> None:
    for _ in range(3):
        site.lookup(rows=7)
    site.lookup()

    (miss,) = site.get("/v1/misses").json()["items"]
    assert (miss["device"], miss["count"]) == ({"key": GPU_KEY}, 3)
    assert miss["problem"]["dims"] == {"batch": 1, "rows": 7, "cols": 256}


def test_the_snapshot_gives_the_same_answers(quiet_site: Any) -> None:
    snapshot = Snapshot.from_dict(quiet_site.get("/v1/snapshot", {"device": GPU_KEY}).json())

    for parameters in ({"rows": 1024}, {"rows": 7}, {"rows": 1024, "max_error": 0.5}, {"rows": 2048}):
        asked = {"cols": 256, "dtype": "bfloat16", **parameters}
        question = read_question(snapshot.signature("scale_rows"), asked)
        found = snapshot.answer(question.problem, question.limits)
        assert found.to_dict() == quiet_site.lookup(**asked).json()


PROBLEM = ("rows", "cols", "batch", "dtype", "x_dtype", "mode", "layout", "alignment")
KNOWN = ("kernel", "device", *PROBLEM, *Limits.NAMES, "channel", "revision")
NAMES = st.sampled_from(KNOWN) | st.text(max_size=12)
VALUES = (
    st.sampled_from(["scale_rows", "softmax", GPU_KEY, "cpu-a-1c-none", "name:x", "bf16", "0", "-1", "1e3", "inf"])
    | st.integers(-(2**70), 2**70).map(str)
    | st.floats().map(str)
    | st.text(max_size=20)
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(NAMES, VALUES), max_size=8), st.booleans())
def test_no_parameters_break_the_server(quiet_site: Any, pairs: list[tuple[str, str]], complete: bool) -> None:
    given_names = {name for name, _ in pairs}
    whole = {"kernel": "scale_rows", "device": GPU_KEY, "rows": "8", "cols": "8", "dtype": "bf16"}
    asked = [*pairs, *((n, v) for n, v in whole.items() if complete and n not in given_names)]

    reply = quiet_site.get("/v1/lookup", asked)

    assert reply.status_code in (200, 404, 422), reply.text
    kind = "application/json" if reply.status_code == 200 else "application/problem+json"
    assert reply.headers["content-type"] == kind
    assert reply.json()
