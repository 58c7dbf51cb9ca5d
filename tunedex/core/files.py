"""Writing files so that a reader finds the old one or the new one, whole."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``, whole or not at all, beside it first and then in its place.

    Raises:
        OSError: the folder cannot be written, or ``path`` is a folder.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
