"""Rows of an older version of a kernel, as this version reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tunedex.core.config import Config
from tunedex.core.row import Row
from tunedex.kernels.base import Kernel


def mapped_forward(kernel: Kernel, rows: Sequence[Row]) -> list[Row]:
    """``rows`` with their configs as this version of ``kernel`` spells them, less those that it has no spelling for."""
    out = []
    for row in rows:
        config: Config | None = row.config
        if row.kernel_version != kernel.signature.version:
            config = kernel.map_forward(row.config, row.kernel_version)
        if config is not None:
            out.append(replace(row, config=config))
    return out
