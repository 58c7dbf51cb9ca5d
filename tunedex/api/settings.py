"""The numbers that steer the server, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """How the server holds, bounds and refreshes.

    ``fresh_s`` is how long a held snapshot answers before the database is asked again whether its revision still
    stands, so a published revision shows after at most that long. ``held_snapshots`` bounds how many are in memory,
    the least recently used going first. Misses are written every ``flush_s``, and ``held_misses`` bounds how many
    different ones wait. ``body_bytes`` and ``items`` bound a request's body and the list in it. ``page_rows`` is how
    many problems a dashboard page shows.
    """

    fresh_s: float = 1.0
    held_snapshots: int = 64
    flush_s: float = 5.0
    held_misses: int = 10_000
    body_bytes: int = 4 * 2**20
    items: int = 1000
    page_rows: int = 200
    retry_after_s: int = 1
