"""A process with no settings, no database and nothing bound yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tunedex import ops
from tunedex.kernels import forward


@pytest.fixture(autouse=True)
def _own_process(fresh_settings: None) -> Iterator[None]:
    ops._plans.clear()
    forward._say_once.cache_clear()
    yield
    ops._plans.clear()
