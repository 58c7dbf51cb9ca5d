"""Every kernel there is: the built-in ones, and those of other packages by the entry point ``tunedex.kernels``."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from tunedex.core.display import one_line
from tunedex.core.errors import CannotRun, UnknownKernel
from tunedex.kernels.base import Kernel

log = logging.getLogger("tunedex.kernels")

ENTRY_POINTS = "tunedex.kernels"

_BUILTIN = ("layernorm_gelu_residual", "softmax", "linear_gelu")


@cache
def builtin_kernels() -> Mapping[str, Kernel]:
    """Tunedex's own kernels by name."""
    return {name: importlib.import_module(f"tunedex.kernels.{name}").KERNEL for name in _BUILTIN}


@cache
def all_kernels(needed: str = "") -> Mapping[str, Kernel]:
    """Every kernel by name, the built-in ones first.

    A package that is at fault is left out with a warning where the kernel called ``needed`` is there without it.

    Raises:
        CannotRun: an installed package's kernel does not load, or takes a name that is taken.
    """
    kernels = dict(builtin_kernels())
    faults: list[CannotRun] = []
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            kernel = _loaded(entry)
            if kernel.name in kernels:
                raise CannotRun(
                    f"kernel {entry.name!r} of {entry.value} takes the name {kernel.name!r}, which is taken"
                )
            kernels[kernel.name] = kernel
        except CannotRun as error:
            faults.append(error)
    if faults and needed not in kernels:
        raise faults[0]
    for fault in faults:
        _warn_once(str(fault))
    return kernels


def get_kernel(name: str) -> Kernel:
    """The kernel called ``name``. A built-in one is there whatever else is installed, of which nothing is loaded.

    Raises:
        UnknownKernel: there is none.
        CannotRun: there is none among those that load, and one does not.
    """
    found = builtin_kernels().get(name) or all_kernels(name).get(name)
    if found is None:
        raise UnknownKernel(f"kernel {name!r} is unknown; known are {', '.join(all_kernels())}", field="kernel")
    return found


def _loaded(entry: EntryPoint) -> Kernel:
    """The kernel that ``entry`` names. What its module prints while it is imported goes to standard error: standard
    output is the program's own, which may be writing a document there.

    Raises:
        CannotRun: it does not load, be it because it ends the process, or is no kernel.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            kernel = entry.load()
            if isinstance(kernel, Kernel) and isinstance(kernel.name, str):
                return kernel
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        said = one_line(error)
        reason = said if said and isinstance(error, Exception) else f"{type(error).__name__}: {said}"
        raise CannotRun(f"kernel {entry.name!r} of {entry.value} does not load: {reason}") from error
    raise CannotRun(f"kernel {entry.name!r}: {entry.value} is not an instance of tunedex.kernels.base.Kernel")


@cache
def _warn_once(fault: str) -> None:
    log.warning("%s", fault)
