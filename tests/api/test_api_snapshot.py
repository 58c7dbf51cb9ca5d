"""GET /v1/snapshot: entity tags, encodings, `since`; and the snapshots held in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from tunedex.api import Settings
from tunedex.api.answers import Answers
from tunedex.api.metrics import Metrics
from tunedex.core.catalog import builtin_signatures
from tunedex.core.device import Device
from tunedex.core.errors import BadInput, DatabaseError
from tunedex.core.snapshot import Snapshot
from tunedex.db import Store, open_store

GPU_KEY = "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"
CPU_KEY = "cpu-some_model-8c-avx2"
PLAIN = {"Accept-Encoding": "identity"}


def get(site: Any, headers: dict[str, str] | None = None, **parameters: Any) -> Any:
    return site.get("/v1/snapshot", {"device": GPU_KEY, **parameters}, headers=headers or PLAIN)


def test_it_is_the_store_s_snapshot_with_every_known_kernel(quiet_site: Any) -> None:
    reply = get(quiet_site)

    served, stored = Snapshot.from_dict(reply.json()), quiet_site.store.snapshot(GPU_KEY)
    assert reply.headers["tunedex-revision"] == "1"
    assert (served.rows, served.revision, served.channel) == (stored.rows, 1, "stable")
    assert set(served.signatures) == {item["kernel"] for item in quiet_site.get("/v1/kernels").json()["items"]}
    assert {"scale_rows", *(signature.kernel for signature in builtin_signatures())} == set(served.signatures)


def test_a_copy_that_is_current_is_not_sent_again(quiet_site: Any) -> None:
    tag = get(quiet_site).headers["etag"]
    assert tag.startswith('"')

    for held in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        reply = get(quiet_site, {"If-None-Match": held, **PLAIN})
        assert (reply.status_code, reply.content) == (304, b"")
        assert reply.headers["etag"] == tag
    assert get(quiet_site, {"If-None-Match": '"other"', **PLAIN}).status_code == 200


def test_since_the_current_copy_there_is_nothing_new(quiet_site: Any) -> None:
    tag = get(quiet_site).headers["etag"]
    zipped = get(quiet_site, {"Accept-Encoding": "gzip"}).headers["etag"]
    for held in (tag, tag.strip('"'), zipped):
        assert get(quiet_site, since=held).status_code == 304
    for other in ("1", "0" * 64, f"{tag.strip(chr(34))}0"):  # the number of a revision says nothing of what is in it
        assert get(quiet_site, since=other).status_code == 200


def test_the_tag_is_a_hash_of_what_is_sent(quiet_site: Any) -> None:
    reply = get(quiet_site)
    assert reply.headers["etag"] == f'"{hashlib.sha256(reply.content).hexdigest()}"'


@pytest.mark.parametrize("parameters", [{}, {"revision": 1}])
def test_a_database_made_anew_has_other_tags_at_the_same_revision(
    open_site: Any, fill: Callable[[Store], None], tmp_path: Path, parameters: dict[str, Any]
) -> None:
    with open_site() as site:
        fill(site.store)
        before = get(site, **parameters)
    for file in tmp_path.glob("tunedex.db*"):
        file.unlink()
    with open_site() as site:
        fill(site.store)
        same = get(site, {"If-None-Match": before.headers["etag"], **PLAIN}, **parameters)
        assert (same.status_code, same.content) == (304, b"")
    for file in tmp_path.glob("tunedex.db*"):
        file.unlink()
    with open_site() as site:
        site.store.register_device(Device.from_dict(before.json()["device"]))
        fill_with_other_rows(site.store, before.json())
        after = get(site, {"If-None-Match": before.headers["etag"], **PLAIN}, **parameters)
        assert after.status_code == 200
        assert after.json()["revision"] == before.json()["revision"] == 1
        assert get(site, since=1, **parameters).status_code == 200


def fill_with_other_rows(store: Store, document: dict[str, Any]) -> None:
    """Publish revision 1 with the kernels and problems of ``document``, each with its last row alone."""
    held = Snapshot.from_dict(document)
    store.register_signatures(held.signatures.values())
    store.publish(held.device.key, {held.problems[key]: [replace(rows[-1], rank=0)] for key, rows in held.rows.items()})


def test_the_tag_tells_device_channel_and_revision_apart(quiet_site: Any) -> None:
    asked = [{}, {"channel": "candidate"}, {"revision": 0}, {"device": CPU_KEY}]

    assert len({get(quiet_site, **parameters).headers["etag"] for parameters in asked}) == 4


def test_it_is_zipped_for_whoever_takes_it(quiet_site: Any) -> None:
    plain, zipped = get(quiet_site), get(quiet_site, {"Accept-Encoding": "br, gzip;q=0.5"})

    assert zipped.headers["content-encoding"] == "gzip"
    assert int(zipped.headers["content-length"]) < len(plain.content)
    assert zipped.content == plain.content  # httpx unpacks it
    assert "accept-encoding" in zipped.headers["vary"].lower()
    assert zipped.headers["etag"] != plain.headers["etag"]  # other bytes, so another strong tag
    assert get(quiet_site, {"If-None-Match": zipped.headers["etag"], **PLAIN}).status_code == 304


@pytest.mark.parametrize("accepted", ["", "identity", "gzip;q=0", "br", "gzip;q=0, *", "gzip;q=x"])
def test_it_is_plain_for_whoever_does_not(quiet_site: Any, accepted: str) -> None:
    assert "content-encoding" not in get(quiet_site, {"Accept-Encoding": accepted}).headers


@pytest.mark.parametrize(
    ("parameters", "status"),
    [
        ({"device": ""}, 422),
        ({"device": "x"}, 422),
        ({"channel": "x"}, 422),
        ({"revision": 99}, 404),
        ({"revision": "x"}, 422),
        ({"since": "x" * 201}, 422),
        ({"sinse": 1}, 422),
        ({"since": [1, 1]}, 422),
    ],
)
def test_bad_input_is_refused(quiet_site: Any, parameters: dict[str, Any], status: int) -> None:
    reply = get(quiet_site, **parameters)

    assert (reply.status_code, reply.headers["content-type"]) == (status, "application/problem+json")


def test_what_is_published_shows_and_a_pinned_revision_stays(site: Any, publish: Callable[..., int]) -> None:
    before = get(site)
    assert site.lookup(revision=1).json()["config"]["block"] == 64

    revision = publish(site.store, 5.0, block=16)

    after = get(site, {"If-None-Match": before.headers["etag"], **PLAIN})
    assert (after.status_code, after.json()["revision"]) == (200, revision)
    assert site.lookup().json()["config"]["block"] == 16
    pinned = site.lookup(revision=1).json()
    assert (pinned["config"]["block"], pinned["revision"]) == (64, 1)
    site.store.rollback(1, GPU_KEY)
    assert site.lookup().json()["config"]["block"] == 64
    assert site.lookup(channel="candidate").json()["config"]["block"] == 16


def test_a_kernel_registered_later_becomes_known(site: Any, scale: Any) -> None:
    asked = {"kernel": "shift_rows", "rows": 4}
    assert site.lookup(**asked).status_code == 404

    site.store.register_signatures([replace(scale, kernel="shift_rows")])

    assert site.lookup(**asked).json()["match"] == "default"


def test_the_default_at_a_revision_stays_when_its_kernel_changes(
    site: Any, scale: Any, publish: Callable[..., int]
) -> None:
    rule = replace(scale.defaults[0], config={"implementation": "triton", "block": 512})
    asked = {"kernel": "scale_rows", "rows": 4}
    assert site.lookup(**asked).json()["config"]["block"] == 128
    tag = get(site, revision=1).headers["etag"]

    site.store.register_signatures([replace(scale, version="v2", defaults=(rule,))])
    assert site.lookup(**asked).json()["config"]["block"] == 128
    publish(site.store, 5.0)

    assert site.lookup(**asked).json()["config"]["block"] == 512
    assert site.lookup(**asked, revision=1).json()["config"]["block"] == 128
    assert get(site, revision=1).headers["etag"] == tag


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class CountingStore:
    """A store whose queries are counted, and that can be away."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked: list[str] = []
        self.away = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*positional: Any, **named: Any) -> Any:
            self.asked.append(name)
            if self.away:
                raise DatabaseError("away")
            return getattr(self._store, name)(*positional, **named)

        return call


def held_by(store: Any, clock: Clock, metrics: Metrics | None = None, **settings: Any) -> Answers:
    return Answers(store, {}, Settings(**settings), metrics or Metrics(), clock)


def test_within_its_interval_a_snapshot_answers_with_no_query(quiet_site: Any) -> None:
    store, clock = CountingStore(quiet_site.store), Clock()

    async def use() -> None:
        answers = held_by(store, clock, fresh_s=1.0)
        first = await answers.snapshot(GPU_KEY)
        assert store.asked == ["stamp", "snapshot"]
        clock.now = 0.9
        assert await answers.snapshot(GPU_KEY) is first
        assert len(store.asked) == 2
        clock.now = 1.1
        assert await answers.snapshot(GPU_KEY) is first  # looked at again, and still standing
        assert store.asked[2:] == ["stamp"]

    anyio.run(use)


@pytest.mark.parametrize("revision", [None, 2])
def test_what_is_held_gives_way_to_another_database_at_the_same_revision(
    site: Any, publish: Callable[..., int], fill: Callable[[Store], None], tmp_path: Path, revision: int | None
) -> None:
    with open_store(str(tmp_path / "restored.db")) as restored:
        fill(restored)
        assert publish(restored, 5.0, block=16) == publish(site.store, 5.0, block=32) == 2
        store, clock = CountingStore(site.store), Clock()

        async def use() -> None:
            answers = held_by(store, clock, fresh_s=1.0)
            before = await answers.snapshot(GPU_KEY, revision=revision)
            store._store = restored
            assert await answers.snapshot(GPU_KEY, revision=revision) is before
            clock.now = 2.0
            after = await answers.snapshot(GPU_KEY, revision=revision)
            assert (after.snapshot.revision, after.snapshot.rows) == (2, restored.snapshot(GPU_KEY).rows)
            assert after.tag != before.tag

        anyio.run(use)


def test_requests_at_once_share_one_read(quiet_site: Any) -> None:
    store = CountingStore(quiet_site.store)

    async def use() -> None:
        answers = held_by(store, Clock())
        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(answers.snapshot, GPU_KEY)

    anyio.run(use)
    assert store.asked.count("snapshot") == 1


def test_a_held_snapshot_answers_while_the_database_is_away(quiet_site: Any) -> None:
    store, clock, metrics = CountingStore(quiet_site.store), Clock(), Metrics()

    async def use() -> None:
        answers = held_by(store, clock, metrics)
        first = await answers.snapshot(GPU_KEY)
        store.away, clock.now = True, 5.0
        assert await answers.snapshot(GPU_KEY) is first
        with pytest.raises(DatabaseError):
            await answers.snapshot(CPU_KEY)
        store.away, clock.now = False, 10.0
        assert (await answers.snapshot(CPU_KEY)).snapshot.revision == 0

    anyio.run(use)
    assert b"tunedex_stale_snapshots_total 1.0" in metrics.text()


def test_the_number_of_held_snapshots_is_bounded(quiet_site: Any) -> None:
    store = CountingStore(quiet_site.store)

    async def use() -> None:
        answers = held_by(store, Clock(), held_snapshots=2)
        for key in (GPU_KEY, "cpu-a-1c-none", GPU_KEY, "cpu-b-1c-none", GPU_KEY, "cpu-a-1c-none"):
            await answers.snapshot(key)

    anyio.run(use)
    assert store.asked.count("snapshot") == 4  # the GPU was always among the two last used; a was dropped for b


def test_a_device_that_is_none_is_never_asked_for(quiet_site: Any) -> None:
    store = CountingStore(quiet_site.store)

    async def use() -> None:
        for key in ("", "x", "name:é", "name:\x00", "nvidia-sm090-132sm-l2_60m-smem_227k-mem_140g"):
            with pytest.raises(BadInput):
                await held_by(store, Clock()).snapshot(key)

    anyio.run(use)
    assert store.asked == []
