"""A database with rows that cannot be read: every route answers with the others."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tunedex.core.problem import Problem
from tunedex.db.models import Base

ROUTES = (
    "/",
    "/devices/{device}",
    "/devices/{device}?channel=candidate",
    "/v1/lookup?kernel=scale_rows&device={device}&rows=1024&cols=256&dtype=bfloat16",
    "/v1/snapshot?device={device}",
    "/v1/devices",
    "/v1/kernels",
    "/v1/bests",
    "/v1/trials",
    "/v1/sweeps",
    "/v1/sweeps/1/curves",
    "/v1/misses",
    "/metrics",
)


@pytest.mark.parametrize("table", sorted(Base.metadata.tables))
@pytest.mark.parametrize("value", ["X'ff'", "'{'"])
def test_no_stored_value_makes_an_internal_error(
    site: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, table: str, value: str
) -> None:
    caplog.set_level(logging.CRITICAL)
    (device,) = (summary.device.key for summary in site.store.devices())
    with closing(sqlite3.connect(tmp_path / "tunedex.db")) as connection:
        for column in Base.metadata.tables[table].columns:
            before = connection.execute(f"SELECT {column.name}, rowid FROM {table}").fetchall()
            try:
                with connection:
                    connection.execute(f"UPDATE {table} SET {column.name} = {value}")
            except sqlite3.IntegrityError:  # a key that several rows would have, or a number that is none
                continue
            for route in ROUTES:
                reply = site.get(route.format(device=device))
                assert reply.status_code in (200, 404), (column, route, reply.text)  # 404: it is of what is gone
            with connection:
                connection.executemany(f"UPDATE {table} SET {column.name} = ? WHERE rowid = ?", before)


def test_the_dashboard_shows_the_rows_beside_a_broken_one(
    site: Any, tmp_path: Path, problem: Callable[..., Problem], caplog: pytest.LogCaptureFixture
) -> None:
    (device,) = (summary.device.key for summary in site.store.devices())
    with closing(sqlite3.connect(tmp_path / "tunedex.db")) as connection, connection:
        connection.execute(f"UPDATE tunedex_bests SET config = '{{' WHERE problem_key = '{problem().key}'")
    page = site.get(f"/devices/{device}").text
    assert "rows 2048" in page
    assert "rows 1024" not in page
    assert site.lookup(rows=2048).json()["match"] == "exact"
    assert site.lookup().json()["match"] == "default"
    assert [item["problem"]["dims"]["rows"] for item in site.get("/v1/bests").json()["items"]] == [2048]
    assert "tunedex_bests id 1: config is not JSON" in caplog.text
