"""What a snapshot answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from core_examples import CPU, FULL_ROW, H200, RTX, SIGNATURE, problem, row, snapshot

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.errors import BadInput, UnknownKernel
from tunedex.core.limits import Limits
from tunedex.core.question import read_question
from tunedex.core.snapshot import Answer, Match, Snapshot, with_installed, with_signatures

FLAT = {"rows": 8, "cols": 16, "dtype": "fp32"}


def ask(held: Snapshot, kernel: str, parameters: Mapping[str, Any]) -> Answer:
    """The way of the command line and the server from flat parameters to an answer."""
    question = read_question(held.signature(kernel), parameters)
    return held.answer(question.problem, question.limits)


def test_a_tuned_problem_is_answered_exactly() -> None:
    best = row(0, 5.0, default_us=10.0)
    answer = ask(snapshot(best, row(1, 6.0)), "norm", FLAT)
    assert answer.match is Match.EXACT
    assert answer.config == best.config
    assert (answer.time_us, answer.speedup, answer.error, answer.distance) == (5.0, 2.0, 1e-7, 0.0)
    assert (answer.channel, answer.revision, answer.policy, answer.reason) == ("stable", 7, "eager-cold", "")
    assert answer.to_dict() == {
        "config": {"implementation": "triton", "block": 1},
        "match": "exact",
        "distance": 0.0,
        "reason": "",
        "source": {"device": H200.key, "environment": "e" * 32, "kind": "local"},
        "time_us": 5.0,
        "speedup": 2.0,
        "error": 1e-7,
        "channel": "stable",
        "revision": 7,
        "policy": "eager-cold",
        "expected_loss": None,
    }


def test_limits_are_asked_beside_the_problem() -> None:
    held = snapshot(row(0, 5.0), row(1, 2.0, lossless=False, error=1e-3))
    assert ask(held, "norm", FLAT).time_us == 5.0
    assert ask(held, "norm", {**FLAT, "max_error": "0.01"}).time_us == 2.0


def test_a_row_of_an_older_version_says_so() -> None:
    answer = snapshot(row(0, kernel_version="ba9876543210")).answer(problem())
    assert answer.match is Match.EXACT
    assert answer.reason == "measured with kernel version ba9876543210, now 0123456789ab"


@pytest.mark.parametrize(
    ("device", "block"), [(H200, 2), (RTX, 1), (CPU, None)], ids=lambda value: getattr(value, "key", "")
)
def test_what_is_not_tuned_gets_the_default_of_its_device(device: Device, block: int | None) -> None:
    answer = snapshot(device=device).answer(problem())
    assert answer.match is Match.DEFAULT
    assert answer.config is not None
    assert answer.config.values.get("block") == block
    assert answer.source.kind == "default"
    assert answer.time_us is answer.speedup is answer.error is answer.distance is None
    assert answer.reason == f"norm:rows=8,cols=16,form=plain,dtype=float32 is not tuned on {device.key}"


def test_what_no_config_meets_gets_the_default_with_the_limits() -> None:
    answer = snapshot(row(0, 5.0)).answer(problem(), Limits(max_latency_us=1.0))
    assert answer.match is Match.DEFAULT
    assert answer.reason == 'none of the 1 tuned configs meets {"max_latency_us":1}'


def test_a_device_that_no_default_is_for_gets_no_config() -> None:
    answer = snapshot(device=Device.from_key("name:Some_NPU")).answer(problem())
    assert answer.config is None
    assert answer.reason.endswith("; norm has no default for name:Some_NPU")
    assert answer.to_dict()["config"] is None


def test_an_unknown_kernel_is_told_with_those_that_are_known() -> None:
    with pytest.raises(UnknownKernel, match="kernel 'nrom' is unknown; known are norm") as caught:
        ask(snapshot(), "nrom", FLAT)
    assert caught.value.field == "kernel"
    with pytest.raises(UnknownKernel, match="known are none"):
        ask(replace(snapshot(), signatures={}), "norm", FLAT)


@pytest.mark.parametrize("wrong", [{"rows": "x"}, {"depth": 1}, {"policy": "lazy"}], ids=str)
def test_bad_parameters_are_bad_input(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as caught:
        ask(snapshot(), "norm", {**FLAT, **wrong})
    assert caught.value.field == next(iter(wrong))


class TestDocument:
    def test_round_trip(self) -> None:
        held = snapshot(row(0, default_us=20.0), FULL_ROW)
        again = Snapshot.from_dict(json.loads(json.dumps(held.to_dict())))
        assert again == held
        assert ask(again, "norm", FLAT) == ask(held, "norm", FLAT)

    def test_the_text_does_not_depend_on_the_order_of_what_it_holds(self) -> None:
        held = snapshot(row(0))
        other = problem(rows=9)
        one = replace(held, problems={**held.problems, other.key: other}, rows={**held.rows, other.key: (row(0),)})
        two = replace(one, problems=dict(reversed(one.problems.items())), rows=dict(reversed(one.rows.items())))
        assert json.dumps(one.to_dict()) == json.dumps(two.to_dict())

    @pytest.mark.parametrize("document", [{}, [], None, "x", 3, {"format": "tunedex-snapshot", "version": 1}], ids=str)
    def test_what_is_none_is_refused(self, document: Any) -> None:
        with pytest.raises(BadInput, match="not a snapshot"):
            Snapshot.from_dict(document)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"format": "zip"}, "format 'zip' is not 'tunedex-snapshot'"),
            ({"version": 2}, "snapshot version 2 is not 1, which this Tunedex reads"),
            ({"device": {"kind": "cuda"}}, "not a snapshot"),
            ({"kernels": [{"kernel": "norm"}]}, "not a snapshot"),
            ({"kernels": None}, "not a snapshot"),
            ({"answers": [{"problem": {}, "rows": []}]}, "not a snapshot"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_what_is_wrong_in_it_is_named(self, change: dict[str, Any], message: str) -> None:
        document = {**snapshot(row(0)).to_dict(), **change}
        with pytest.raises(BadInput, match=re.escape(message)):
            Snapshot.from_dict(document)

    @pytest.mark.parametrize("part", ["policy", "resources"])
    def test_a_measurement_of_another_shape_is_refused(self, part: str) -> None:
        document = json.loads(json.dumps(snapshot(row(0)).to_dict()))
        document["answers"][0]["rows"][0]["measurement"][part] = "?"
        with pytest.raises(BadInput, match="not a snapshot"):
            Snapshot.from_dict(document)

    @pytest.mark.parametrize("time", [0, 0.0, -1.0, float("nan"), float("inf"), None, "10"])
    @pytest.mark.parametrize("part", ["time_us", "p20_us", "p80_us", "default_us", "library_us", "warm_us", "error"])
    def test_what_is_no_time_is_refused_before_anything_is_divided_by_it(self, part: str, time: Any) -> None:
        document = json.loads(json.dumps(snapshot(FULL_ROW).to_dict()))
        holder = document["answers"][0]["rows"][0]
        holder = holder["measurement"] if part in holder["measurement"] else holder
        holder[part] = time
        optional = time is None and part in ("default_us", "library_us", "warm_us")
        if optional or (part == "error" and time == 0):
            Snapshot.from_dict(document)
            return
        with pytest.raises(BadInput, match="not a snapshot"):
            Snapshot.from_dict(document)


def test_signatures_are_added_but_not_replaced() -> None:
    newer = replace(SIGNATURE, version="ffffffffffff")
    other = replace(SIGNATURE, kernel="other")
    held = with_signatures(snapshot(row(0)), [newer, other])
    assert held.signatures == {"norm": SIGNATURE, "other": other}
    answer = ask(held, "other", FLAT)
    assert answer.match is Match.DEFAULT
    assert answer.config == Config("triton", {"block": 2})


def test_what_is_installed_takes_the_place_of_what_was_published() -> None:
    newer, other = replace(SIGNATURE, version="ffffffffffff"), replace(SIGNATURE, kernel="other")
    held = with_installed(replace(snapshot(row(0)), signatures={"norm": SIGNATURE, "other": other}), [newer])
    assert held.signatures == {"norm": newer, "other": other}
    assert held.answer(problem()).reason == f"measured with kernel version {SIGNATURE.version}, now ffffffffffff"
