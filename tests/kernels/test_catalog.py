"""The built-in kernels' signatures as data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tunedex.core.catalog import builtin_signatures
from tunedex.kernels.catalog import CATALOG_PATH, catalog_text
from tunedex.kernels.registry import builtin_kernels

ROOT = Path(__file__).parents[2]


def interpreters() -> list[Path]:
    """The Pythons of other versions beside this one that Tunedex runs on."""
    found = Path(sys.base_prefix).parent.glob("3.1[123]*/bin/python3")
    return sorted(path for path in found if Path(sys.base_prefix) not in path.parents)


def test_the_catalog_is_current() -> None:
    assert CATALOG_PATH.read_text(encoding="utf-8") == catalog_text(), "run `make catalog`"


def test_it_holds_the_kernels_signatures() -> None:
    assert builtin_signatures() == tuple(kernel.signature for kernel in builtin_kernels().values())


def test_reading_it_needs_no_kernel_code() -> None:
    code = (
        "import sys\n"
        "from tunedex.core.catalog import builtin_signatures\n"
        "assert builtin_signatures()\n"
        "print(*{name.split('.')[0] for name in sys.modules} & {'torch', 'triton', 'numpy', 'numba'})\n"
        "print(*(name for name in sys.modules if name.startswith('tunedex.kernels')))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.split() == []


def test_kernels_are_read_without_what_they_run_on() -> None:
    # -S leaves site-packages out: no torch, no triton, no numba, no numpy.
    code = "from tunedex.kernels.catalog import catalog_text; print(catalog_text(), end='')"
    result = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.stdout == catalog_text(), result.stderr


@pytest.mark.skipif(not interpreters(), reason="no other Python is installed beside this one")
@pytest.mark.parametrize("python", interpreters(), ids=lambda path: path.parents[1].name)
def test_it_is_the_same_on_every_python(python: Path) -> None:
    code = "from tunedex.kernels.catalog import catalog_text; print(catalog_text(), end='')"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    result = subprocess.run(
        [python, "-S", "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.stdout == catalog_text(), result.stderr
