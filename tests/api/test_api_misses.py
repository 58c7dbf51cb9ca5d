"""/v1/misses: reports of clients, and the server's own counting."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tunedex.api import Settings
from tunedex.api.metrics import Metrics
from tunedex.api.misses import Misses
from tunedex.core.errors import BadInput, CannotRun, DatabaseError, TunedexError
from tunedex.core.problem import Problem
from tunedex.db import open_store

GPU_KEY = "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"
CPU_KEY = "cpu-other_model-4c-avx2"


def miss(rows: Any = 64, **other: Any) -> dict[str, Any]:
    return {"kernel": "scale_rows", "dims": {"rows": rows, "cols": 256}, "dtype": "bfloat16", **other}


def report(site: Any, *misses: Any, device: str = GPU_KEY) -> Any:
    return site.post("/v1/misses", {"device": device, "misses": list(misses)})


def counts(site: Any, **filters: Any) -> dict[int, int]:
    items = site.get("/v1/misses", filters).json()["items"]
    return {item["problem"]["dims"]["rows"]: item["count"] for item in items}


def test_a_report_is_taken_and_adds_up(site: Any) -> None:
    reply = report(site, miss(64, count=3), miss(32))
    assert (reply.status_code, reply.json()) == (202, {"accepted": 2, "errors": []})
    report(site, miss(64, count=2))

    assert counts(site) == {64: 5, 32: 1}


def test_a_problem_as_a_snapshot_spells_it_is_taken(site: Any, problem: Any) -> None:
    assert report(site, {**problem(96).to_dict(), "count": 1}).status_code == 202

    assert counts(site) == {96: 1}


def test_a_device_never_measured_may_be_reported(site: Any) -> None:
    report(site, miss(), device="cpu-other_model-4c-avx2")

    assert counts(site, device="cpu-other_model-4c-avx2") == {64: 1}
    assert counts(site, device=GPU_KEY) == {}
    assert len(site.get("/v1/devices").json()["items"]) == 1


def test_misses_are_filtered_by_kernel(site: Any) -> None:
    report(site, miss())

    assert counts(site, kernel="softmax") == {}
    assert counts(site, kernel="scale_rows") == {64: 1}


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (miss(0), "misses.1.rows"),
        (miss(-1), "misses.1.rows"),
        (miss(count=0), "misses.1.count"),
        (miss(count=-1), "misses.1.count"),
        (miss(count=10**10), "misses.1.count"),
        (miss(count="x"), "misses.1.count"),
        (miss(kernel="nope"), "misses.1.kernel"),
        (miss(kernel=None), "misses.1.kernel"),
        (miss(dtype="float17"), "misses.1.dtype"),
        (miss(max_error=0.1), "misses.1.max_error"),
        ("softmax", "misses.1"),
    ],
)
def test_one_bad_miss_costs_none_of_the_others(site: Any, bad: Any, field: str) -> None:
    reply = report(site, miss(64), bad, miss(32))

    assert (reply.status_code, reply.json()["accepted"]) == (202, 2)
    assert [error["field"] for error in reply.json()["errors"]] == [field]
    assert counts(site) == {64: 1, 32: 1}


def test_a_report_of_nothing_but_bad_misses_is_refused(site: Any) -> None:
    reply = report(site, miss(kernel="nope"), miss(0))

    assert (reply.status_code, reply.headers["content-type"]) == (422, "application/problem+json")
    assert [error["field"] for error in reply.json()["errors"]] == ["misses.0.kernel", "misses.1.rows"]
    assert counts(site) == {}


@pytest.mark.parametrize("device", ["", "gpu", "name:é", "x" * 300])
def test_a_bad_device_refuses_the_report(site: Any, device: str) -> None:
    assert report(site, miss(), device=device).status_code == 422


@pytest.mark.parametrize("number", [0, 1001])
def test_the_number_of_misses_is_bounded(site: Any, number: int) -> None:
    assert report(site, *[miss()] * number).status_code == 422


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("127.0.0.1", 202),
        ("127.8.8.8", 202),
        ("::1", 202),
        ("::ffff:127.0.0.1", 202),
        ("192.0.2.1", 403),
        ("::ffff:192.0.2.1", 403),
        ("fe80::1%eth0", 403),
        ("testclient", 403),
    ],
)
def test_only_this_host_may_report(open_site: Any, fill: Any, address: str, status: int) -> None:
    with open_site(client=(address, 50000)) as site:
        fill(site.store)
        reply = report(site, miss())
        assert reply.status_code == status
        if status == 403:
            assert reply.headers["content-type"] == "application/problem+json"
            assert reply.json()["type"] == "/problems#writes-refused"
        assert site.lookup().status_code == 200  # whoever reaches the server may read
        assert counts(site) == ({64: 1} if status == 202 else {})


def test_what_is_counted_is_written_in_the_background(open_site: Any, fill: Any) -> None:
    with open_site(Settings(fresh_s=0, flush_s=0.05)) as site:
        fill(site.store)
        site.lookup(rows=7)
        with anyio.from_thread.start_blocking_portal() as portal:
            for _ in range(200):
                if site.store.list_misses().items:
                    break
                portal.call(anyio.sleep, 0.05)
        assert [item.count for item in site.store.list_misses().items] == [1]


def test_what_is_counted_is_written_at_the_end(open_site: Any, fill: Any, tmp_path: Any) -> None:
    with open_site(Settings(flush_s=1000)) as site:
        fill(site.store)
        site.lookup(rows=7)
        assert site.store.list_misses().items == []

    with open_store(str(tmp_path / "tunedex.db")) as store:
        assert [item.count for item in store.list_misses().items] == [1]


def test_no_more_are_held_than_there_is_room_for(open_site: Any, fill: Any) -> None:
    with open_site(Settings(fresh_s=0, flush_s=1000, held_misses=2)) as site:
        fill(site.store)
        for rows in (3, 5, 7, 9, 3):
            assert site.lookup(rows=rows).status_code == 200
        assert "tunedex_misses_dropped_total 2.0" in site.get("/metrics").text
        refused = report(site, miss(11))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert counts(site) == {3: 2, 5: 1}
        assert report(site, miss(11)).status_code == 202  # there is room again


class Scripted:
    """A store whose writes fail as told, one failure a write, and are remembered afterwards."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.written: list[tuple[str, dict[Problem, int]]] = []

    def add_misses(self, device: str, counts: dict[Problem, int]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.written.append((device, dict(counts)))


def holding(store: Any, flush_s: float = 5.0) -> Misses:
    return Misses(store, Settings(flush_s=flush_s), Metrics())


@pytest.mark.parametrize("failure", [DatabaseError("away"), CannotRun("not now"), TunedexError("odd")])
def test_what_cannot_be_written_now_waits(problem: Any, failure: Exception) -> None:
    async def use() -> None:
        store = Scripted(failure)
        misses = holding(store)
        misses.count(GPU_KEY, problem(8))
        misses.count(CPU_KEY, problem(9))
        await misses.flush()
        assert store.written == [(CPU_KEY, {problem(9): 1})]
        misses.count(GPU_KEY, problem(8))
        await misses.flush()
        assert store.written[1:] == [(GPU_KEY, {problem(8): 2})]
        await misses.flush()
        assert len(store.written) == 2

    anyio.run(use)


def test_what_can_never_be_written_is_dropped_and_counted(problem: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def use() -> None:
        store, metrics = Scripted(BadInput("a value that no column holds")), Metrics()
        misses = Misses(store, Settings(), metrics)  # type: ignore[arg-type]
        misses.count(GPU_KEY, problem(8), 3)
        for _ in range(2):
            await misses.flush()
        assert store.written == []
        assert b"tunedex_misses_dropped_total 3.0" in metrics.text()

    anyio.run(use)
    assert "no column holds" in caplog.text


def test_no_failure_ends_the_writing_in_the_background(problem: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def use() -> None:
        store = Scripted(RuntimeError("a fault of ours"), CannotRun("not now"))
        misses = holding(store, flush_s=0.01)
        misses.count(GPU_KEY, problem(8))
        writing = asyncio.create_task(misses.run())
        for _ in range(6000):
            if store.written:
                break
            await asyncio.sleep(0.01)
        writing.cancel()
        assert store.written == [(GPU_KEY, {problem(8): 1})]

    anyio.run(use)
    assert "a fault of ours" in caplog.text


def test_a_flush_that_is_cancelled_loses_nothing_and_writes_nothing_twice(problem: Any) -> None:
    begun, gate = threading.Event(), threading.Event()

    class Slow(Scripted):
        def add_misses(self, device: str, counts: dict[Problem, int]) -> None:
            begun.set()
            assert gate.wait(60)
            super().add_misses(device, counts)

    async def use() -> None:
        store = Slow()
        misses = holding(store)
        for device in (GPU_KEY, CPU_KEY):
            misses.count(device, problem(8))
        flushing = asyncio.create_task(misses.flush())
        await anyio.to_thread.run_sync(begun.wait)
        flushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flushing
        gate.set()
        await misses.flush()
        assert store.written == [(GPU_KEY, {problem(8): 1}), (CPU_KEY, {problem(8): 1})]

    anyio.run(use)
