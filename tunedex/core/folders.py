"""Where this user's programs keep data and caches."""

from __future__ import annotations

import os
import sys
from pathlib import Path

CACHE_SETTING = "TUNEDEX_CACHE_DIR"


def cache_folder() -> Path:
    """The folder of what can be made again: ``TUNEDEX_CACHE_DIR``, else one in the user's cache folder.

    Raises:
        RuntimeError: neither the setting nor a home folder exists.
    """
    if configured := os.environ.get(CACHE_SETTING):
        return Path(configured)
    return _folder("XDG_CACHE_HOME", ".cache", "Caches") / "tunedex"


def default_database() -> Path:
    """The file of the embedded database where no setting names another.

    Raises:
        RuntimeError: there is no home folder.
    """
    return _folder("XDG_DATA_HOME", ".local/share", "Application Support") / "tunedex" / "tunedex.db"


def _folder(setting: str, on_linux: str, on_macos: str) -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / on_macos
    # The XDG base directory rules: a relative path is to be ignored.
    configured = Path(os.environ.get(setting) or "")
    return configured if configured.is_absolute() else Path.home() / on_linux
