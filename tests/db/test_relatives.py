"""What a snapshot carries of other devices of the family, the same on both kinds of database."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from db_examples import DEVICE, OTHER, fill, problem, row
from sqlalchemy import text

from tunedex.core.device import Device
from tunedex.core.measurement import Resources
from tunedex.core.row import Row
from tunedex.core.settings import NEARNESS
from tunedex.core.snapshot import Match, Snapshot
from tunedex.db import Store

H100 = Device.from_key("nvidia-sm90-132sm-l2_50m-smem_227k-mem_80g")
H100_PCIE = Device.from_key("nvidia-sm90-114sm-l2_50m-smem_227k-mem_80g")
H20 = Device.from_key("nvidia-sm90-78sm-l2_60m-smem_227k-mem_90g")
A100 = Device.from_key("nvidia-sm80-108sm-l2_40m-smem_163k-mem_40g")


def small(block: int = 64, rank: int = 0, *, source: str = "local") -> Row:
    found = row(block, 10.0 + rank, rank, source)
    return replace(found, measurement=replace(found.measurement, resources=Resources(shared_memory_bytes=1024)))


def relatives(store: Store, device: Device = H100, **asked: int) -> list[tuple[str, int]]:
    snapshot = store.snapshot(device.key, **asked)  # type: ignore[arg-type]
    return [(relative.device.key, relative.revision) for relative in snapshot.relatives]


@pytest.fixture
def tuned(store: Store) -> Store:
    """One problem on `DEVICE`, an H200: revision 1."""
    fill(store)
    for device in (H100, H100_PCIE, H20, A100):
        store.register_device(device)
    store.publish(DEVICE.key, {problem(): [small(16), small(32, 1)]})
    store.promote()
    return store


def test_a_device_never_tuned_is_answered_from_its_family(tuned: Store) -> None:
    snapshot = tuned.snapshot(H100.key)
    assert (snapshot.revision, snapshot.rows) == (0, {})
    answer = snapshot.answer(problem())
    assert (answer.match, answer.config) == (Match.FAMILY, small(16).config)
    assert (answer.source.device, answer.revision) == (DEVICE.key, 1)
    assert Snapshot.from_dict(snapshot.to_dict()) == snapshot


def test_devices_apart_get_nothing(tuned: Store) -> None:
    for device in (A100, OTHER, Device.from_key("name:NVIDIA_H200"), DEVICE):
        assert relatives(tuned, device) == []


def test_the_nearest_that_have_something_on_the_channel_are_carried(tuned: Store) -> None:
    tuned.publish(H100_PCIE.key, {problem(): [small(32)]})
    tuned.publish(H20.key, {problem(): [small(64)]})
    if not tuned.embedded:
        assert relatives(tuned) == [(DEVICE.key, 1)]
        tuned.promote()
    assert relatives(tuned) == [(H100_PCIE.key, 2), (DEVICE.key, 1)]
    assert len(relatives(tuned)) == NEARNESS.relatives


def test_a_pinned_revision_pins_the_relatives_too(tuned: Store) -> None:
    tuned.publish(DEVICE.key, {problem(): [small(128)]})
    tuned.promote()
    served = tuned.snapshot(H100.key).relatives
    assert (served[0].revision, served[0].rows[problem().key]) == (2, (small(128),))
    pinned = tuned.snapshot(H100.key, revision=1).relatives
    assert (pinned[0].revision, pinned[0].rows[problem().key][0]) == (1, small(16))
    assert tuned.snapshot(H100.key, revision=0).relatives == ()


def test_the_stamp_tells_what_a_relative_publishes(tuned: Store) -> None:
    before, apart = tuned.stamp(H100.key), tuned.stamp(A100.key)
    assert tuned.stamp(H100.key) == before
    tuned.publish(DEVICE.key, {problem(): [small(128)]})
    tuned.promote()
    assert tuned.stamp(H100.key) != before
    assert tuned.stamp(A100.key) == apart
    tuned.rollback(1)
    assert tuned.stamp(H100.key) == before


def test_the_best_rows_are_carried_and_nothing_imported(tuned: Store) -> None:
    rows = [small(2**rank, rank) for rank in range(NEARNESS.relative_rows + 3)]
    tuned.publish(DEVICE.key, {problem(): rows, problem(8): [small(source="imported")]})
    tuned.promote()
    (carried,) = tuned.snapshot(H100.key).relatives
    assert list(carried.problems) == [problem().key]
    assert carried.rows[problem().key] == tuple(rows[: NEARNESS.relative_rows])


def test_a_relative_with_nothing_but_imports_is_none(tuned: Store) -> None:
    tuned.publish(H100_PCIE.key, {problem(): [small(source="imported")]})
    tuned.promote()
    assert relatives(tuned) == [(DEVICE.key, 1)]


def test_a_key_that_is_none_is_passed_over(tuned: Store, caplog: pytest.LogCaptureFixture) -> None:
    statement = text(
        "INSERT INTO tunedex_devices (key, kind, name, family, description, registered_at, seen_at) "
        "SELECT 'what is this', kind, name, family, description, registered_at, seen_at FROM tunedex_devices "
        "WHERE key = :key"
    )
    tuned._write(lambda session: session.execute(statement, {"key": H20.key}))
    with caplog.at_level(logging.WARNING):
        assert relatives(tuned) == [(DEVICE.key, 1)]
