"""What is remembered: models, the store with every query, the selection of the best, migrations.

Its records need no SQLAlchemy, and who takes nothing else from here, as a measuring process does, loads none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunedex.db.engine import absent_file
    from tunedex.db.store import Store, database_exists, open_store
    from tunedex.db.transactions import Patience
    from tunedex.db.urls import database_url, embedded_path

__all__ = ["Patience", "Store", "absent_file", "database_exists", "database_url", "embedded_path", "open_store"]

_FROM = {
    "Patience": "transactions",
    "Store": "store",
    "absent_file": "engine",
    "database_exists": "store",
    "database_url": "urls",
    "embedded_path": "urls",
    "open_store": "store",
}


def __getattr__(name: str) -> Any:
    if name in _FROM:
        return getattr(importlib.import_module(f"{__name__}.{_FROM[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
