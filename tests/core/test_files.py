"""Files of people: bounded where they are read, whole where they are written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunedex.core.errors import BadInput
from tunedex.core.files import check_target, read_bounded, write_whole


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def test_a_new_file_has_the_mode_of_the_umask(tmp_path: Path, umask: None) -> None:
    path = tmp_path / "a.json"
    for content in (b"old", b"new"):
        write_whole(path, content)
        assert path.read_bytes() == content
        assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_is_named_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder" / "full").mkdir(parents=True)
    for path in (tmp_path / "none" / "a", tmp_path / "folder"):
        with pytest.raises(OSError, match=str(path)) as caught:
            write_whole(path, b"")
        assert caught.value.filename == str(path)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(BadInput, match="5 bytes; at most 4 are read"):
        read_bounded(path, 4)


def test_what_has_no_end_is_no_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (Path("/dev/full"), Path("/dev/zero"), pipe, tmp_path):
        with pytest.raises(IsADirectoryError if path == tmp_path else BadInput):
            read_bounded(path)
        with pytest.raises(BadInput, match="is no regular file; give another name"):
            check_target(path, lambda content: True, "list")


def test_only_one_s_own_kind_of_file_is_overwritten(tmp_path: Path) -> None:
    path, link = tmp_path / "a", tmp_path / "link"
    check_target(path, lambda content: False, "list")
    path.write_bytes(b"mine")
    check_target(path, lambda content: content == b"mine", "list")
    link.symlink_to(tmp_path / "nowhere")
    for other in (path, link):
        with pytest.raises(BadInput, match="is there and is no list; give another name"):
            check_target(other, lambda content: content == b"yours", "list")
    with pytest.raises(BadInput, match="there is no folder"):
        check_target(tmp_path / "none" / "a", lambda content: True, "list")
