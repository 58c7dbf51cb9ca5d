"""GET /v1/snapshot: entity tags, encodings, `since`; and the snapshots held in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest

from tunedex.api import Settings
from tunedex.api.answers import Answers
from tunedex.api.metrics import Metrics
from tunedex.core.catalog import builtin_signatures
from tunedex.core.errors import BadInput, DatabaseError
from tunedex.core.snapshot import Snapshot
from tunedex.db import Store

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


def test_since_the_current_revision_there_is_nothing_new(quiet_site: Any) -> None:
    assert get(quiet_site, since=1).status_code == 304
    assert get(quiet_site, since=0).status_code == 200
    assert get(quiet_site, since=5).status_code == 200  # a rollback went behind what the caller holds


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
        ({"since": -1}, 422),
        ({"since": 2**70}, 422),
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
        assert store.asked == ["kernels", "snapshot"]
        clock.now = 0.9
        assert await answers.snapshot(GPU_KEY) is first
        assert len(store.asked) == 2
        clock.now = 1.1
        assert await answers.snapshot(GPU_KEY) is first  # looked at again, and still standing
        assert store.asked[2:] == ["kernels", "current_revision"]

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
