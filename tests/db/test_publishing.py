"""Revisions, channels and snapshots, the same on both kinds of database."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from db_examples import DEVICE, OTHER, VERSION, fill, problem, row, signature

from tunedex.core.device import Device
from tunedex.core.errors import BadInput, UnknownDevice, UnknownRevision
from tunedex.core.signature import DefaultRule, Signature
from tunedex.core.snapshot import Match, Snapshot
from tunedex.db import Store, open_store

CANDIDATE = "candidate"


def served(snapshot: Snapshot) -> dict[str, list[int]]:
    """The block sizes of a snapshot's rows, by problem."""
    return {
        str(snapshot.problems[key]): [int(found.config.values["block"]) for found in rows]
        for key, rows in snapshot.rows.items()
    }


def test_what_is_published_is_in_the_snapshot(store: Store) -> None:
    rows = [row(64), row(128, 11.0, rank=1)]
    revision = store.publish(DEVICE.key, {problem(): rows})
    snapshot = store.snapshot(DEVICE.key, channel=CANDIDATE)
    assert revision == 1
    assert snapshot.revision == 1
    assert snapshot.device == DEVICE
    assert snapshot.signatures == {"softmax": signature()}
    assert snapshot.problems == {problem().key: problem()}
    assert snapshot.rows == {problem().key: tuple(rows)}
    answer = snapshot.answer(problem())
    assert (answer.match, answer.config) == (Match.EXACT, rows[0].config)
    assert Snapshot.from_dict(snapshot.to_dict()) == snapshot


def test_a_device_never_seen_has_a_description_and_signatures(store: Store) -> None:
    snapshot = store.snapshot("nvidia-sm89-128sm-l2_72m-smem_99k-mem_24g")
    assert snapshot.device == Device.from_key("nvidia-sm89-128sm-l2_72m-smem_99k-mem_24g")
    assert (snapshot.revision, snapshot.rows, list(snapshot.signatures)) == (0, {}, ["softmax"])
    assert store.current_revision("nvidia-sm89-128sm-l2_72m-smem_99k-mem_24g") == 0
    with pytest.raises(BadInput, match="is not a device key"):
        store.snapshot("RTX 4090")


def test_equal_rows_make_no_new_revision(store: Store) -> None:
    rows = [row(64), row(128, 11.0, rank=1)]
    first = store.publish(DEVICE.key, {problem(): rows})
    before = store.counts()
    assert store.publish(DEVICE.key, {problem(): list(reversed(rows))}) == first
    assert store.counts() == before


def test_the_rows_of_one_problem_are_those_of_the_snapshot(store: Store) -> None:
    store.publish(DEVICE.key, {problem(1): [row(64), row(128, 11.0, rank=1)], problem(2): [row(32)]})
    store.promote()
    store.publish(DEVICE.key, {problem(1): [row(256), row(64, 11.0, rank=1)]})
    store.publish(OTHER.key, {problem(1): [row(16)]})
    store.rollback(1, DEVICE.key)
    for device in (DEVICE.key, OTHER.key, "cpu-never_seen-4c-avx2"):
        for channel in (CANDIDATE, "stable"):
            rows = store.snapshot(device, channel=channel).rows
            for asked in (problem(1), problem(2), problem(3)):
                assert store.rows_of(device, asked.key, channel) == rows.get(asked.key, ())
    assert [found.config.values["block"] for found in store.rows_of(DEVICE.key, problem(1).key)] == [64, 128]
    assert [found.config.values["block"] for found in store.rows_of(DEVICE.key, problem(1).key, CANDIDATE)] == [256, 64]
    with pytest.raises(BadInput, match="known are candidate, stable"):
        store.rows_of(DEVICE.key, problem(1).key, "nightly")


def test_only_the_problems_given_change(store: Store) -> None:
    store.publish(DEVICE.key, {problem(1): [row(64)], problem(2): [row(64)]})
    assert store.publish(DEVICE.key, {problem(2): [row(128)], problem(1): [row(64)]}) == 2
    assert served(store.snapshot(DEVICE.key, channel=CANDIDATE)) == {str(problem(1)): [64], str(problem(2)): [128]}
    assert store.counts()["bests"] == 3
    store.publish(DEVICE.key, {problem(1): []})
    assert served(store.snapshot(DEVICE.key, channel=CANDIDATE)) == {str(problem(2)): [128]}


def test_numbers_grow_over_all_devices_and_each_has_its_own_pointer(store: Store) -> None:
    assert store.publish(DEVICE.key, {problem(): [row(64)]}) == 1
    assert store.publish(OTHER.key, {problem(): [row(32)]}) == 2
    assert store.publish(DEVICE.key, {problem(): [row(128)]}) == 3
    assert store.current_revision(DEVICE.key, CANDIDATE) == 3
    assert store.current_revision(OTHER.key, CANDIDATE) == 2
    assert served(store.snapshot(OTHER.key, revision=3)) == {str(problem()): [32]}


def test_an_older_revision_stays_what_it_was(store: Store) -> None:
    store.publish(DEVICE.key, {problem(1): [row(64)]})
    then = store.snapshot(DEVICE.key, revision=1)
    store.publish(DEVICE.key, {problem(1): [row(128)], problem(2): [row(256)]})
    store.publish(DEVICE.key, {problem(1): []})
    assert store.snapshot(DEVICE.key, revision=1) == then
    assert served(store.snapshot(DEVICE.key, revision=2)) == {str(problem(1)): [128], str(problem(2)): [256]}
    assert served(store.snapshot(DEVICE.key, revision=3)) == {str(problem(2)): [256]}
    assert store.snapshot(DEVICE.key, revision=0).rows == {}


def test_only_an_embedded_database_promotes_by_itself(store: Store) -> None:
    store.publish(DEVICE.key, {problem(): [row()]})
    assert store.current_revision(DEVICE.key) == (1 if store.embedded else 0)
    assert store.promote() == ({} if store.embedded else {DEVICE.key: 1})
    assert store.current_revision(DEVICE.key) == 1
    assert store.promote() == {}


def test_promote_one_device_or_one_revision(store: Store) -> None:
    store.publish(DEVICE.key, {problem(): [row(64)]})
    store.publish(DEVICE.key, {problem(): [row(128)]})
    store.publish(OTHER.key, {problem(): [row(32)]})
    store.promote(DEVICE.key, revision=1)
    assert store.current_revision(DEVICE.key) == 1
    assert served(store.snapshot(DEVICE.key)) == {str(problem()): [64]}
    assert store.promote(DEVICE.key) == {DEVICE.key: 2}
    assert store.current_revision(OTHER.key) == (3 if store.embedded else 0)


def test_rollback_moves_every_device_or_one(store: Store) -> None:
    for block in (64, 128):
        store.publish(DEVICE.key, {problem(): [row(block)]})
        store.publish(OTHER.key, {problem(): [row(block * 10)]})
    store.promote()
    assert store.rollback(2) == {DEVICE.key: 2, OTHER.key: 2}
    assert served(store.snapshot(DEVICE.key)) == {str(problem()): [64]}
    assert served(store.snapshot(OTHER.key)) == {str(problem()): [640]}
    assert store.current_revision(DEVICE.key, CANDIDATE) == 3
    assert store.rollback(2) == {}
    assert store.rollback(1, DEVICE.key) == {DEVICE.key: 1}
    assert (store.current_revision(DEVICE.key), store.current_revision(OTHER.key)) == (1, 2)


def test_rollback_never_moves_a_device_forward(store: Store) -> None:
    store.publish(DEVICE.key, {problem(): [row(64)]})
    store.promote()
    store.publish(DEVICE.key, {problem(): [row(128)]})
    store.promote(DEVICE.key, revision=1)
    for block in (32, 16):
        store.publish(OTHER.key, {problem(): [row(block)]})
    store.promote(OTHER.key)
    assert store.rollback(3) == {OTHER.key: 3}
    assert store.rollback(3, DEVICE.key) == {}
    assert (store.current_revision(DEVICE.key), store.current_revision(OTHER.key)) == (1, 3)
    assert served(store.snapshot(DEVICE.key)) == {str(problem()): [64]}


def test_what_is_published_after_a_rollback_keeps_what_was_not_given(store: Store) -> None:
    store.publish(DEVICE.key, {problem(1): [row(64)]})
    store.publish(DEVICE.key, {problem(1): [row(128)], problem(2): [row(32)]})
    store.promote()
    store.rollback(1)
    assert store.publish(DEVICE.key, {problem(3): [row(16)]}) == 3
    store.promote()
    assert served(store.snapshot(DEVICE.key)) == {
        str(problem(1)): [128],
        str(problem(2)): [32],
        str(problem(3)): [16],
    }


def retuned(block: int, version: str = VERSION) -> Signature:
    """The kernel of the examples with another default."""
    rule = DefaultRule("cuda", {"implementation": "triton", "block": block})
    return replace(signature(version=version), defaults=(rule,))


@pytest.mark.parametrize("version", ["newer", VERSION])
def test_a_revision_keeps_the_kernels_that_it_was_made_with(store: Store, version: str) -> None:
    store.publish(DEVICE.key, {problem(1): [row()]})
    store.promote()
    then, stamp = store.snapshot(DEVICE.key, revision=1), store.stamp(DEVICE.key, revision=1)
    assert then.signatures == {"softmax": signature()}
    store.register_signatures([retuned(512, version), signature("layernorm")])
    assert store.snapshot(DEVICE.key, revision=1) == then
    # What a channel offers knows a new kernel at once, and the others as they were when its revision was made.
    assert store.snapshot(DEVICE.key).signatures == {"softmax": signature(), "layernorm": signature("layernorm")}
    store.publish(DEVICE.key, {problem(2): [row()]})
    assert store.snapshot(DEVICE.key, channel=CANDIDATE).signatures["softmax"] == retuned(512, version)
    assert store.snapshot(DEVICE.key, revision=1) == then
    assert store.stamp(DEVICE.key, revision=1) == stamp
    store.promote()
    store.rollback(1)
    assert store.snapshot(DEVICE.key).signatures["softmax"] == signature()


def test_a_kernel_that_has_changed_makes_a_new_revision_of_equal_rows(store: Store) -> None:
    answers = {problem(): [row()]}
    store.publish(DEVICE.key, answers)
    store.register_signatures([signature("layernorm")])
    assert store.publish(DEVICE.key, answers) == 1
    store.register_signatures([retuned(512)])
    assert store.publish(DEVICE.key, answers) == 2
    assert store.publish(DEVICE.key, answers) == 2
    assert served(store.snapshot(DEVICE.key, revision=2)) == {str(problem()): [64]}


def test_a_stamp_tells_snapshots_apart(store: Store, tmp_path: Path) -> None:
    store.publish(DEVICE.key, {problem(): [row(64)]})
    store.promote()
    stamps = [store.stamp(DEVICE.key), store.stamp(DEVICE.key, channel=CANDIDATE), store.stamp(OTHER.key)]
    assert store.stamp(DEVICE.key) == stamps[0]
    with open_store(str(tmp_path / "anew.db")) as anew:
        fill(anew)
        assert anew.publish(DEVICE.key, {problem(): [row(32)]}) == 1
        stamps.append(anew.stamp(DEVICE.key))
        assert anew.stamp(DEVICE.key, revision=1) == stamps[-1]
    store.publish(DEVICE.key, {problem(): [row(128)]})
    store.promote()
    stamps.append(store.stamp(DEVICE.key))
    store.register_signatures([signature("layernorm")])
    stamps.append(store.stamp(DEVICE.key))
    assert len({*stamps}) == len(stamps)
    for wrong, error in (({"revision": 9}, UnknownRevision), ({"channel": "nightly"}, BadInput)):
        with pytest.raises(error):
            store.stamp(DEVICE.key, **wrong)


def test_stable_stays_where_a_rollback_put_it_until_it_is_promoted(store: Store) -> None:
    for block in (64, 128):
        store.publish(DEVICE.key, {problem(1): [row(block)]})
    store.promote()
    store.rollback(1)
    assert store.publish(DEVICE.key, {problem(1): [row(128)]}) == 2
    assert store.publish(DEVICE.key, {problem(2): [row(32)]}) == 3
    assert served(store.snapshot(DEVICE.key)) == {str(problem(1)): [64]}
    assert (store.current_revision(DEVICE.key), store.current_revision(DEVICE.key, CANDIDATE)) == (1, 3)
    assert store.promote() == {DEVICE.key: 3}
    assert store.publish(DEVICE.key, {problem(2): [row(16)]}) == 4
    assert store.current_revision(DEVICE.key) == (4 if store.embedded else 3)


def test_unknown_devices_revisions_and_channels_are_named(store: Store) -> None:
    with pytest.raises(UnknownRevision, match="nothing is published"):
        store.promote(revision=1)
    store.publish(DEVICE.key, {problem(): [row()]})
    for call in (
        lambda: store.promote("name:nothing"),
        lambda: store.rollback(1, "name:nothing"),
        lambda: store.publish("name:nothing", {problem(): [row()]}),
    ):
        with pytest.raises(UnknownDevice, match=f"known are .*{DEVICE.key}"):
            call()
    for call in (
        lambda: store.promote(revision=2),
        lambda: store.rollback(0),
        lambda: store.rollback(-1),
        lambda: store.snapshot(DEVICE.key, revision=2**70),
        lambda: store.snapshot(DEVICE.key, revision=-1),
    ):
        with pytest.raises(UnknownRevision, match=r"known are . to 1"):
            call()
    for call in (
        lambda: store.snapshot(DEVICE.key, channel="nightly"),
        lambda: store.current_revision(DEVICE.key, "nightly"),
        lambda: store.list_bests(channel="nightly"),
    ):
        with pytest.raises(BadInput, match="known are candidate, stable"):
            call()


def test_another_spelling_of_a_time_is_no_change(store: Store) -> None:
    store.publish(DEVICE.key, {problem(): [row()]})
    same = replace(row(), measured_at="2026-01-31T13:00:00.5+01:00")
    assert store.publish(DEVICE.key, {problem(): [same]}) == 1


def test_a_wrong_time_publishes_nothing(store: Store) -> None:
    with pytest.raises(BadInput, match="measured_at"):
        store.publish(DEVICE.key, {problem(): [replace(row(), measured_at="yesterday")]})
    assert store.counts()["revisions"] == store.counts()["bests"] == store.counts()["problems"] == 0


def test_an_imported_row_may_name_an_environment_that_is_not_known(store: Store) -> None:
    imported = replace(row(source="imported"), environment="0" * 32, measured_at="")
    store.publish(DEVICE.key, {problem(): [imported]})
    assert store.snapshot(DEVICE.key, channel=CANDIDATE).rows[problem().key] == (imported,)


def test_two_who_publish_at_once_get_numbers_of_their_own(store: Store, url: str) -> None:
    ready = threading.Barrier(4)

    def publish(worker: int) -> list[int]:
        device = (DEVICE, OTHER)[worker % 2].key
        with open_store(url) as mine:
            ready.wait()
            return [mine.publish(device, {problem(worker + 1): [row(n + 1)]}) for n in range(5)]

    with ThreadPoolExecutor(4) as pool:
        numbers = sorted(number for batch in pool.map(publish, range(4)) for number in batch)
    assert numbers == list(range(1, 21))
    assert served(store.snapshot(DEVICE.key, channel=CANDIDATE)) == {str(problem(1)): [5], str(problem(3)): [5]}


def test_a_snapshot_of_an_older_version_says_so(store: Store) -> None:
    store.publish(DEVICE.key, {problem(): [row()]})
    store.register_signatures([signature(version="newer")])
    store.publish(DEVICE.key, {problem(2): [replace(row(), kernel_version="newer")]})
    answer = store.snapshot(DEVICE.key, channel=CANDIDATE).answer(problem())
    assert answer.config == row().config
    assert VERSION in answer.reason
    assert "newer" in answer.reason
