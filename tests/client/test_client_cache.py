"""The last snapshot on disk: whole or a miss, written whole or not at all, and never in the way."""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from demo import H200, snapshot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tunedex.client.cache import Slot, Stamped
from tunedex.client.settings import SETTINGS

SLOT = Slot("http://127.0.0.1:8421", H200.key, "stable", None)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_what_is_written_is_read(caplog: pytest.LogCaptureFixture) -> None:
    assert SLOT.read() is None
    assert SLOT.write(Stamped(snapshot(), '"tag"'))
    assert SLOT.read() == Stamped(snapshot(), '"tag"')
    assert warnings_of(caplog) == []


def test_slots_are_apart() -> None:
    SLOT.write(Stamped(snapshot()))
    for other in (
        replace(SLOT, source="http://other"),
        replace(SLOT, device="cpu-x-2c-avx2"),
        replace(SLOT, channel="candidate"),
        replace(SLOT, revision=3),
    ):
        assert other.read() is None


@pytest.mark.parametrize("source", ["s" * 5000, "../../etc/passwd", "a/b:c{}", "ключ"])
def test_a_name_is_bounded_and_stays_in_the_folder(source: str, tmp_path: Path) -> None:
    slot = replace(SLOT, source=source)
    assert slot.path.parent == tmp_path / "cache" / "snapshots"
    assert len(slot.path.name) == 37


def test_a_name_that_cannot_be_encoded_is_not_cached() -> None:
    slot = replace(SLOT, source="\udcff")
    assert slot.read() is None
    assert slot.write(Stamped(snapshot())) is False


def whole() -> bytes:
    SLOT.write(Stamped(snapshot()))
    return SLOT.path.read_bytes()


DAMAGED = {
    "empty": b"",
    "brace": b"{",
    "rubbish after": b'{"a":1}}',
    "null": b"null",
    "list": b"[]",
    "text": b'"x"',
    "zeros": b"\0" * 1000,
    "ones": b"\xff" * 1000,
    "deep": b"[" * 100_000,
    "other version": b'{"format":"tunedex-cache","version":2,"sha256":""}\n{}',
    "no body": b'{"format":"tunedex-cache","version":1,"sha256":""}',
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_a_miss_with_one_warning_and_heals(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    SLOT.path.parent.mkdir(parents=True)
    SLOT.path.write_bytes(content)
    assert SLOT.read() is None
    assert SLOT.read() is None
    assert len(warnings_of(caplog)) == 1
    assert str(SLOT.path) in warnings_of(caplog)[0]
    assert SLOT.write(Stamped(snapshot()))
    assert SLOT.read() == Stamped(snapshot())


def test_an_empty_folder_in_the_place_of_the_file_heals(caplog: pytest.LogCaptureFixture) -> None:
    SLOT.path.mkdir(parents=True)
    assert SLOT.read() is None
    assert len(warnings_of(caplog)) == 1
    assert SLOT.write(Stamped(snapshot()))
    assert SLOT.read() == Stamped(snapshot())


def test_a_link_to_nothing_heals(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    SLOT.path.parent.mkdir(parents=True)
    SLOT.path.symlink_to(tmp_path / "nothing")
    assert SLOT.read() is None
    assert len(warnings_of(caplog)) == 1
    assert SLOT.write(Stamped(snapshot()))
    assert not SLOT.path.is_symlink()
    assert SLOT.read() == Stamped(snapshot())


def test_two_hundred_megabytes_of_spaces_are_not_read(caplog: pytest.LogCaptureFixture) -> None:
    SLOT.path.parent.mkdir(parents=True)
    with SLOT.path.open("wb") as file:
        file.truncate(200 * 10**6)
    assert SLOT.read() is None
    assert f"at most {SETTINGS.snapshot_bytes} are read" in warnings_of(caplog)[0]


def test_a_pipe_does_not_hang(caplog: pytest.LogCaptureFixture) -> None:
    SLOT.path.parent.mkdir(parents=True)
    os.mkfifo(SLOT.path)
    assert SLOT.read() is None
    assert stat.S_ISFIFO(SLOT.path.stat().st_mode)
    assert len(warnings_of(caplog)) == 1


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(min_value=0), byte=st.integers(0, 255), cut=st.booleans())
def test_a_changed_byte_or_a_cut_end_never_goes_unseen(place: int, byte: int, cut: bool) -> None:
    content = bytearray(whole())
    place %= len(content)
    changed = bytes(content[:place]) if cut else bytes([*content[:place], byte, *content[place + 1 :]])
    SLOT.path.write_bytes(changed)
    assert SLOT.read() == (Stamped(snapshot()) if changed == content else None)


@pytest.mark.parametrize("folder", ["/dev/null/cache", "/proc/cache"])
def test_where_nothing_can_be_written_there_is_one_warning(
    folder: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEDEX_CACHE_DIR", folder)
    assert SLOT.write(Stamped(snapshot())) is False
    assert SLOT.write(Stamped(snapshot())) is False
    assert [w for w in warnings_of(caplog) if "not kept on disk" in w] == warnings_of(caplog)[:1]
    assert SLOT.read() is None


def test_a_user_without_a_home_has_no_cache(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNEDEX_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    assert SLOT.read() is None
    monkeypatch.setattr(Path, "home", _no_home)
    assert SLOT.read() is None
    assert SLOT.write(Stamped(snapshot())) is False


def _no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_a_write_that_fails_leaves_the_old_file_and_no_rubbish(monkeypatch: pytest.MonkeyPatch) -> None:
    SLOT.write(Stamped(snapshot(3)))

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert SLOT.write(Stamped(snapshot(4))) is False
    assert [path.name for path in SLOT.path.parent.iterdir()] == [SLOT.path.name]
    assert SLOT.read() == Stamped(snapshot(3))
