"""/healthz, /readyz, /metrics."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tunedex.db.models import ChannelRow, TrialRow


def samples(site: Any) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    reply = site.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


def execute(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()


def test_a_server_with_its_database_is_alive_and_ready(quiet_site: Any) -> None:
    for path in ("/healthz", "/readyz"):
        assert quiet_site.get(path).json() == {"status": "ok"}


def test_with_another_schema_it_is_alive_and_not_ready(site: Any, tmp_path: Path) -> None:
    execute(tmp_path / "tunedex.db", "UPDATE tunedex_alembic_version SET version_num = 'later'")

    reply = site.get("/readyz")
    assert (reply.status_code, reply.headers["content-type"]) == (503, "application/problem+json")
    assert reply.headers["retry-after"] == "1"
    assert site.get("/healthz").status_code == 200


def test_a_database_that_does_not_answer_is_503_and_tells_nothing_of_itself(site: Any, tmp_path: Path) -> None:
    site.lookup()
    execute(tmp_path / "tunedex.db", f"DROP TABLE {TrialRow.__tablename__}")
    execute(tmp_path / "tunedex.db", f"DROP TABLE {ChannelRow.__tablename__}")

    reply = site.get("/v1/trials")
    assert (reply.status_code, reply.json()["type"]) == (503, "/problems#database-away")
    assert str(tmp_path) not in reply.text
    assert "table" not in reply.text
    assert site.get("/").status_code == 503
    assert site.lookup().json()["match"] == "exact"  # from memory
    assert samples(site)["tunedex_database_up", ()] == 0


def test_requests_are_counted_by_route_and_status(site: Any) -> None:
    before = samples(site)
    site.lookup()
    site.lookup(rows="x")
    site.get("/nowhere/at/all")
    site.get("/nowhere/else")
    site.get("/devices/cpu-a-1c-none")
    site.request("PATCH", "/healthz")
    site.request("PROPFIND", "/healthz")
    after = samples(site)

    def more(method: str, route: str, status: int) -> float:
        key = "tunedex_requests_total", (("method", method), ("route", route), ("status", str(status)))
        return after.get(key, 0) - before.get(key, 0)

    assert more("GET", "/v1/lookup", 200) == 1
    assert more("GET", "/v1/lookup", 422) == 1
    assert more("GET", "unmatched", 404) == 2
    assert more("GET", "/devices/{key:path}", 404) == 1
    assert sum(more("other", route, 405) for route in ("/healthz", "unmatched")) == 2
    count = "tunedex_request_seconds_count", (("route", "/v1/lookup"),)
    assert after[count] - before.get(count, 0) == 2


def test_lookups_are_counted_by_match(site: Any) -> None:
    query = {"kernel": "scale_rows", "dims": {"rows": 7, "cols": 256}, "dtype": "bf16"}
    device = "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"
    site.lookup()
    site.lookup(rows=7)
    site.post("/v1/lookup:batch", {"device": device, "queries": [query, query, {}]})

    found = samples(site)
    assert found["tunedex_lookups_total", (("match", "exact"),)] == 1
    assert found["tunedex_lookups_total", (("match", "default"),)] == 3


def test_the_newest_revision_of_each_channel_is_told(site: Any) -> None:
    found = samples(site)

    assert found["tunedex_revision", (("channel", "stable"),)] == 1
    assert found["tunedex_revision", (("channel", "candidate"),)] == 1
    assert found["tunedex_database_up", ()] == 1


def test_what_a_caller_sends_is_no_label(site: Any) -> None:
    for number in range(20):
        site.get(f"/secret{number}")
        site.get(f"/devices/name:secret{number}")
        site.lookup(rows=number + 1)
        site.request(f"SECRET{number}", "/")

    assert "secret" not in site.get("/metrics").text.lower()
