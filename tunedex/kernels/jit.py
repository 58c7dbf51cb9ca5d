"""Triton where it is installed, and a stand-in that lets kernel files be imported where it is not."""

from __future__ import annotations

from typing import Any

try:
    import triton
    import triton.language as tl

    jit = triton.jit
except ImportError:  # the server image and a client have no triton; they read signatures only
    triton = tl = None

    def jit(fn: Any) -> Any:
        """Leave ``fn`` as it is: nothing launches it here."""
        return fn


__all__ = ["jit", "tl", "triton"]
