"""The numbers that steer a client, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """How long a client waits, and how much it holds.

    ``network_s`` is the longest that connecting or refreshing waits for a server, ``database_s`` for a database on
    this machine, ``probe_s`` for the child process that asks the driver, ``exit_s`` for the last report of misses.
    ``memo_entries`` bounds the calls already answered, ``held_misses`` the problems waiting to be reported,
    ``reported_misses`` those of one report, ``snapshot_bytes`` a snapshot on its way in or on disk.
    """

    network_s: float = 2.0
    database_s: float = 15.0
    probe_s: float = 10.0
    exit_s: float = 0.5
    memo_entries: int = 65_536
    held_misses: int = 4_096
    reported_misses: int = 1_000
    snapshot_bytes: int = 64 * 2**20


SETTINGS = Settings()
