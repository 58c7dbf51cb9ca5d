"""The compute precision of torch's float32 matrix products on CUDA, set for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tunedex.core.config import Value


@contextmanager
def matmul_precision(precision: Value) -> Iterator[None]:
    """Run torch's float32 matrix products in ``precision`` (``ieee`` or ``tf32``), then as before."""
    import torch

    backend = torch.backends.cuda.matmul
    before = backend.fp32_precision
    if before == precision:
        yield
        return
    backend.fp32_precision = precision
    try:
        yield
    finally:
        backend.fp32_precision = before
