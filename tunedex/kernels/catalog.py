"""Writes the built-in kernels' signatures to ``tunedex/core/catalog.json``: ``python -m tunedex.kernels.catalog``.

Run it (``make catalog``) after every change to a built-in kernel's code or defaults; a test says whether the file
is current. The text is the same on every Python, because a kernel's version is.
"""

from __future__ import annotations

import json
from pathlib import Path

import tunedex.core.catalog as core_catalog
from tunedex.kernels.registry import builtin_kernels

CATALOG_PATH = Path(core_catalog.__file__).with_name(core_catalog.CATALOG_FILE)


def catalog_text() -> str:
    """The catalog of the kernels as their code stands now."""
    document = {
        "format": core_catalog.CATALOG_FORMAT,
        "version": core_catalog.CATALOG_VERSION,
        "kernels": [kernel.signature.to_dict() for kernel in builtin_kernels().values()],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the catalog."""
    CATALOG_PATH.write_text(catalog_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
