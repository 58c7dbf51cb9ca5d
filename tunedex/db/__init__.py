"""What is remembered: models, the store with every query, the selection of the best, migrations."""

from tunedex.db.engine import absent_file
from tunedex.db.store import Store, database_exists, open_store
from tunedex.db.transactions import Patience
from tunedex.db.urls import database_url, embedded_path

__all__ = ["Patience", "Store", "absent_file", "database_exists", "database_url", "embedded_path", "open_store"]
