"""Every kernel there is: the built-in ones, and those of other packages by the entry point ``tunedex.kernels``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points

from tunedex.core.errors import CannotRun, UnknownKernel
from tunedex.kernels.base import Kernel

ENTRY_POINTS = "tunedex.kernels"

_BUILTIN = ("layernorm_gelu_residual", "softmax", "linear_gelu")


@cache
def builtin_kernels() -> Mapping[str, Kernel]:
    """Tunedex's own kernels by name."""
    return {name: importlib.import_module(f"tunedex.kernels.{name}").KERNEL for name in _BUILTIN}


@cache
def all_kernels() -> Mapping[str, Kernel]:
    """Every kernel by name, the built-in ones first.

    Raises:
        CannotRun: an installed package's kernel does not load, or takes a name that is taken.
    """
    kernels = dict(builtin_kernels())
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            kernel = entry.load()
        except Exception as error:
            raise CannotRun(f"kernel {entry.name!r} of {entry.value} does not load: {error}") from error
        if not isinstance(kernel, Kernel):
            raise CannotRun(f"kernel {entry.name!r}: {entry.value} is not an instance of tunedex.kernels.base.Kernel")
        if kernel.name in kernels:
            raise CannotRun(f"kernel {entry.name!r} of {entry.value} takes the name {kernel.name!r}, which is taken")
        kernels[kernel.name] = kernel
    return kernels


def get_kernel(name: str) -> Kernel:
    """The kernel called ``name``.

    Raises:
        UnknownKernel: there is none.
    """
    kernels = all_kernels()
    if name not in kernels:
        raise UnknownKernel(f"kernel {name!r} is unknown; known are {', '.join(kernels)}", field="kernel")
    return kernels[name]
