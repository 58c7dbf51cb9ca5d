"""What the tasks of a device's sweep share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tunedex.core.device import Device
from tunedex.db import Store
from tunedex.db.records import Ceilings
from tunedex.tuner.budget import Budget
from tunedex.tuner.compiling import CompilePool
from tunedex.tuner.report import Effort, Progress
from tunedex.tuner.settings import SETTINGS, Timeouts
from tunedex.tuner.spent import Ledger
from tunedex.tuner.worker import Worker


@dataclass(frozen=True)
class Context:
    """``environment`` is a key, ``sweep`` the number in the store; ``selector`` names the device at hand among those
    of one key."""

    store: Store
    device: Device
    environment: str
    effort: Effort
    sweep: int
    ceilings: Ceilings
    worker: Worker
    pool: CompilePool | None
    watch: Callable[[Progress], None]
    budget: Budget
    ledger: Ledger
    timeouts: Timeouts = SETTINGS.timeouts
    selector: str = ""
