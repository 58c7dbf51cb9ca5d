"""Compiling CUDA C++ with NVRTC: what is refused, what is kept, what a missing part costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunedex.kernels import nvrtc
from tunedex.kernels.base import CompileError

MACROS: dict[str, int | str] = {
    "ELEMENT_BYTES": 2,
    "BFLOAT16": 1,
    "COLS": 64,
    "VEC": 2,
    "LANES": 32,
    "ROWS": 2,
    "STREAMING": 0,
}

pytestmark = pytest.mark.skipif(nvrtc.missing_nvrtc() is not None, reason=str(nvrtc.missing_nvrtc()))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNEDEX_CACHE_DIR", str(tmp_path))
    return tmp_path / "nvrtc"


def test_a_program_is_kept_and_read_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cubin = nvrtc.compile_cubin("softmax", MACROS, 90)
    assert cubin.startswith(b"\x7fELF")
    (kept,) = folder.iterdir()
    assert kept.read_bytes() == cubin

    def refuse(*_: object) -> bytes:
        raise AssertionError("compiled again")

    monkeypatch.setattr(nvrtc, "_compile", refuse)
    assert nvrtc.compile_cubin("softmax", dict(reversed(MACROS.items())), 90) == cubin


def test_whatever_changes_the_program_is_kept_apart(folder: Path) -> None:
    nvrtc.compile_cubin("softmax", MACROS, 90)
    nvrtc.compile_cubin("softmax", MACROS, 80)
    nvrtc.compile_cubin("softmax", {**MACROS, "STREAMING": 1}, 90)
    assert len(list(folder.iterdir())) == 3


def test_an_empty_file_is_compiled_anew(folder: Path) -> None:
    cubin = nvrtc.compile_cubin("softmax", MACROS, 90)
    (kept,) = folder.iterdir()
    kept.write_bytes(b"")
    assert nvrtc.compile_cubin("softmax", MACROS, 90) == cubin
    assert kept.read_bytes() == cubin


def test_a_folder_that_cannot_be_made_costs_only_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TUNEDEX_CACHE_DIR", str(tmp_path / "file"))
    assert nvrtc.compile_cubin("softmax", MACROS, 90).startswith(b"\x7fELF")
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.usefixtures("folder")
def test_a_refused_program_says_where() -> None:
    with pytest.raises(CompileError, match=r"rows\.cuh\(\d+\): error: .*whole vectors"):
        nvrtc.compile_cubin("softmax", {**MACROS, "COLS": 63}, 90)


@pytest.mark.usefixtures("folder")
def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(CompileError, match=r"gpu-architecture|INVALID"):
        nvrtc.compile_cubin("softmax", MACROS, 12)


def test_the_cache_lies_where_the_settings_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUNEDEX_CACHE_DIR", str(tmp_path))
    nvrtc.compile_cubin("softmax", MACROS, 90)
    assert [path.suffix for path in (tmp_path / "nvrtc").iterdir()] == [".cubin"]
