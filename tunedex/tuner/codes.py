"""Configs as rows of numbers: a code is the place of a value among those of its tunable."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Rows x tunables.
Codes = NDArray[np.int32]


class RowIndex:
    """Finds a row among ``rows``, all of which differ, in the time of a binary search."""

    def __init__(self, rows: Codes) -> None:
        self._rows = rows
        # Odd numbers drawn once: the sums of different rows are almost never the same, and where they are, rows decide.
        self._weights = np.random.default_rng(0).integers(0, 2**63, rows.shape[1], dtype=np.uint64) * 2 + 1
        sums = self._sums(rows)
        self._order = sums.argsort(kind="stable")
        self._sorted = sums[self._order]

    def place(self, row: Sequence[int]) -> int | None:
        """Where ``row`` is; None where it is not."""
        wanted = np.array(row, dtype=np.int32)
        total = self._sums(wanted[None, :])[0]
        begin, end = np.searchsorted(self._sorted, total, "left"), np.searchsorted(self._sorted, total, "right")
        found = (int(place) for place in self._order[begin:end] if np.array_equal(self._rows[place], wanted))
        return next(found, None)

    def _sums(self, rows: Codes) -> NDArray[np.uint64]:
        sums: NDArray[np.uint64] = rows.astype(np.int64).view(np.uint64) @ self._weights
        return sums
