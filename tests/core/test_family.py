"""Which devices answer for another one, and with what."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from core_examples import CPU, H200, RTX, SIGNATURE, problem, row, snapshot

from tunedex.core.config import Config
from tunedex.core.device import MIB, Device
from tunedex.core.errors import BadInput
from tunedex.core.family import Relative, device_distance, fits
from tunedex.core.limits import Limits
from tunedex.core.measurement import Resources
from tunedex.core.row import Row
from tunedex.core.snapshot import Match, Snapshot

H100 = Device.from_key("nvidia-sm90-132sm-l2_50m-smem_227k-mem_80g")
A100 = Device.from_key("nvidia-sm80-108sm-l2_40m-smem_163k-mem_40g")
RTX_3090 = Device.from_key("nvidia-sm86-82sm-l2_6m-smem_99k-mem_24g")
RTX_3080 = Device.from_key("nvidia-sm86-68sm-l2_5m-smem_99k-mem_10g")
NAMED = Device.from_key("name:NVIDIA_H100_PCIe")


def small(config: int = 16, time_us: float = 10.0, *, rank: int = 0, shared: int | None = 1024, **more: Any) -> Row:
    resources = Resources(shared_memory_bytes=shared)
    return row(rank, time_us, config=Config("triton", {"block": config}), resources=resources, **more)


def relative(device: Device, *rows: Row, revision: int = 5, **dims: int) -> Relative:
    tuned = problem(**dims)
    return Relative(device, revision, {tuned.key: tuned}, {tuned.key: rows})


def held(device: Device, *relatives: Relative) -> Snapshot:
    return replace(snapshot(device=device), relatives=relatives)


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        (H200, H100, 0.263),
        (RTX_3090, RTX_3080, 0.533),
        (CPU, Device.from_key("cpu-plain-4c-avx2"), 1.0),
        (H200, H200, None),  # itself
        (H200, A100, None),  # another family
        (H200, CPU, None),
        (A100, RTX_3090, None),  # the same family, and too far
        (H200, Device.from_key("nvidia-sm90-16sm-l2_10m-smem_227k-mem_18g-mig-1g.18gb"), None),
        (CPU, Device.from_key("cpu-plain-2c-avx512"), None),
        (CPU, Device.from_key("cpu-other-2c-avx2"), None),
        (CPU, Device.from_key("cpu-plain-64c-avx2"), None),
        (NAMED, H100, None),
        (H100, NAMED, None),
        (NAMED, Device.from_key("name:NVIDIA_H100"), None),
        (H200, replace(H100, l2_bytes=0), None),
        (Device.from_key("nvidia-sm100-148sm-l2_126m-smem_227k-mem_180g"),
         Device.from_key("nvidia-sm120-170sm-l2_96m-smem_227k-mem_32g"), None),
    ],
    ids=lambda value: getattr(value, "key", str(value)),
)  # fmt: skip
def test_how_far_apart_devices_are(one: Device, other: Device, apart: float | None) -> None:
    assert device_distance(one, other) == (apart if apart is None else pytest.approx(apart, abs=1e-3))


def test_a_share_of_a_virtual_gpu_answers_for_nobody_else() -> None:
    virtual = replace(H100, profile="vgpu-h100xm-80c")
    assert device_distance(H100, virtual) is None
    assert device_distance(virtual, H100) == 0.0


def test_a_device_is_as_far_as_its_key_says() -> None:
    exact = replace(H200, l2_bytes=60 * MIB + 1000, memory_bytes=139 * 2**30, name="NVIDIA H200")
    assert device_distance(exact, H100) == device_distance(Device.from_key(exact.key), H100)


@pytest.mark.parametrize(
    ("shared", "device", "right"),
    [(99 * 1024, RTX, True), (99 * 1024 + 1, RTX, False), (None, RTX, False), (None, CPU, True)],
)
def test_shared_memory_is_bounded_by_the_device_that_asks(shared: int | None, device: Device, right: bool) -> None:
    assert fits(small(shared=shared), device) is right
    assert fits(replace(small(shared=shared), config=Config("library")), device)


def test_what_a_relative_measured_is_marked_and_has_no_time() -> None:
    found = held(H200, relative(H100, small())).answer(problem())
    assert (found.match, found.config) == (Match.FAMILY, small().config)
    assert found.source.device == H100.key
    assert found.distance == pytest.approx(0.263, abs=1e-3)
    assert (found.time_us, found.speedup, found.error, found.expected_loss) == (None, None, None, None)
    assert found.revision == 7
    assert found.reason == f"{problem()} is not tuned on {H200.key}; it is on {H100.key}, 0.263 doublings away"


def test_the_nearest_device_that_has_something_answers() -> None:
    near, far = relative(H100, small(16)), relative(replace(H100, l2_bytes=40 * MIB), small(32))
    assert held(H200, far, near).answer(problem()).config == small(16).config
    too_large = relative(H100, small(16, shared=2**20))
    assert held(H200, far, too_large).answer(problem()).config == small(32).config


def test_what_does_not_fit_gives_way_to_the_next_row_and_at_last_to_the_default() -> None:
    rows = (small(64, 5.0, shared=160 * 1024), small(16, 6.0, rank=1))
    asked = replace(RTX_3080, shared_memory_bytes=99 * 1024)
    assert held(asked, relative(RTX_3090, *rows)).answer(problem()).config == small(16).config
    found = held(asked, relative(RTX_3090, rows[0])).answer(problem())
    assert (found.match, found.config) == (Match.DEFAULT, Config("triton", {"block": 1}))


@pytest.mark.parametrize("more", [{"kernel_version": "f" * 12}, {"source": "imported"}, {"lossless": False}], ids=str)
def test_only_what_this_version_measured_and_the_limits_allow_is_taken_over(more: dict[str, Any]) -> None:
    assert held(H200, relative(H100, small(**more))).answer(problem()).match is Match.DEFAULT


def test_what_only_a_measurement_here_tells_is_not_taken_over() -> None:
    assert held(H200, relative(H100, small())).answer(problem(), Limits(max_latency_us=1e6)).match is Match.DEFAULT


def test_a_relatives_neighbours_answer_where_it_has_no_exact_row() -> None:
    problems = {size: problem(rows=size) for size in (4, 16)}
    tuned = Relative(H100, 5, {p.key: p for p in problems.values()}, {p.key: (small(),) for p in problems.values()})
    found = held(H200, tuned).answer(problem(rows=8))
    assert (found.match, found.config) == (Match.FAMILY, small().config)
    assert found.distance == pytest.approx(1.263, abs=1e-3)
    assert "ranked by 2 tuned problems, the nearest with rows" in found.reason


def test_exact_comes_before_near_before_family_before_default() -> None:
    own = {size: problem(rows=size) for size in (4, 8, 16)}
    rows = {own[8].key: (small(8),), own[4].key: (small(16),), own[16].key: (small(16),)}
    taken_over = relative(H100, small(32))
    full = replace(held(H200, taken_over), problems={p.key: p for p in own.values()}, rows=rows)
    assert full.answer(problem(rows=8)).match is Match.EXACT
    without = replace(full, rows={key: each for key, each in rows.items() if key != own[8].key})
    without = replace(without, problems={key: without.problems[key] for key in without.rows})
    assert (without.answer(problem(rows=8)).match, without.answer(problem(rows=8)).config) == (
        Match.NEAR,
        small(16).config,
    )
    assert held(H200, taken_over).answer(problem(rows=8)).match is Match.FAMILY
    assert held(H200).answer(problem(rows=8)).match is Match.DEFAULT


def test_a_device_known_by_name_only_is_never_exact() -> None:
    tuned = replace(snapshot(small(source="imported"), device=NAMED), relatives=())
    found = tuned.answer(problem())
    assert (found.match, found.config, found.distance) == (Match.FAMILY, small().config, None)
    assert found.reason == f"{NAMED.key} is known by its name only"
    assert found.time_us == 10.0


class TestDocument:
    def test_round_trip(self) -> None:
        whole = held(H200, relative(H100, small(), small(32, rank=1)))
        again = Snapshot.from_dict(json.loads(json.dumps(whole.to_dict())))
        assert again == whole
        assert again.answer(problem()) == whole.answer(problem())

    def test_one_without_relatives_is_read(self) -> None:
        document = held(H200).to_dict()
        del document["relatives"]
        assert Snapshot.from_dict(document) == held(H200)

    @pytest.mark.parametrize("relatives", [None, 3, [{}], [{"device": {}}], {"a": 1}], ids=str)
    def test_what_is_wrong_in_them_is_refused(self, relatives: Any) -> None:
        with pytest.raises(BadInput, match="not a snapshot"):
            Snapshot.from_dict({**held(H200).to_dict(), "relatives": relatives})

    def test_their_times_are_checked_too(self) -> None:
        document = json.loads(json.dumps(held(H200, relative(H100, small())).to_dict()))
        document["relatives"][0]["answers"][0]["rows"][0]["measurement"]["time_us"] = 0
        with pytest.raises(BadInput, match="time_us 0 is not a time above 0"):
            Snapshot.from_dict(document)


def test_the_signature_knows_which_sizes_may_differ() -> None:
    assert SIGNATURE.varying == ("batch", "rows")
