"""Problem files, right and wrong, as they are read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tunedex.core.errors import BadInput, UnknownKernel
from tunedex.core.files import DOCUMENT_BYTES
from tunedex.tuner.problem_file import read_problems

ENTRY: dict[str, Any] = {"kernel": "softmax", "dims": {"rows": 4, "cols": 8}, "dtypes": {"x": "float32"}, "share": 0.2}


def written(tmp_path: Path, *entries: object, **changes: object) -> Path:
    path = tmp_path / "problems.json"
    path.write_text(json.dumps({"tunedex": "problems", "version": 1, "problems": list(entries), **changes}))
    return path


def test_a_problem_file_is_read_most_time_first_and_each_problem_once(tmp_path: Path) -> None:
    more = {**ENTRY, "dims": {"rows": 9, "cols": 8}, "share": 0.3}
    path = written(tmp_path, ENTRY, more, {**ENTRY, "layout": "contiguous", "alignment": 16}, device={"key": "name:A"})
    file = read_problems(path)
    assert [problem.dims["rows"] for problem in file.problems] == [4, 9]
    assert file.device_key == "name:A"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({}, "has no kernel"),
        ("softmax", "has no kernel"),
        ({**ENTRY, "dims": [4, 8]}, "dims is not an object"),
        ({**ENTRY, "dims": {"rows": 4}}, "softmax needs cols"),
        ({**ENTRY, "dims": {**ENTRY["dims"], "dtype": "float32"}}, "softmax has no 'dtype' in dims"),
        ({**ENTRY, "dims": {"rows": 0, "cols": 8}}, "rows=0: nothing to compute"),
        ({**ENTRY, "share": 10**400}, "share 1000"),
        ({**ENTRY, "dims": {"rows": [4], "cols": 8}}, "is not a whole number"),
        ({**ENTRY, "dtypes": {"x": "float33"}}, "dtype 'float33' is unknown"),
        ({**ENTRY, "dtypes": {}}, "softmax needs dtype"),
        ({**ENTRY, "attributes": {"gelu": "erf"}}, "softmax has no 'gelu' in attributes"),
        ({**ENTRY, "layout": 3}, "layout '3' is unknown"),
        ({**ENTRY, "layout": "diagonal"}, "layout 'diagonal' is unknown"),
        ({**ENTRY, "alignment": True}, "alignment=True is not a whole number"),
        ({**ENTRY, "alignment": 3}, "alignment=3 is not 1, 2, 4, 8 or 16 bytes"),
        ({**ENTRY, "share": "most"}, "share 'most' is not a number"),
        ({**ENTRY, "share": -1}, "share -1 is not a number"),
    ],
)
def test_a_wrong_entry_is_one_line_that_names_its_place(entry: object, words: str, tmp_path: Path) -> None:
    path = written(tmp_path, ENTRY, entry)
    with pytest.raises(BadInput) as caught:
        read_problems(path)
    assert str(caught.value).startswith(f"{path}: problems[1]: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_entry_of_an_unknown_kernel_says_which_are_known(tmp_path: Path) -> None:
    with pytest.raises(UnknownKernel, match=r"problems\[0\]: kernel 'sofmax' is unknown; known are"):
        read_problems(written(tmp_path, {**ENTRY, "kernel": "sofmax"}))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a problem file"),
        (b'{"version": 1, "problems": []}', "not a problem file"),
        (b'{"tunedex": "problems", "version": 2}', "version 2 is not 1"),
        (b'{"tunedex": "problems", "version": true}', "version True is not 1"),
        (b'{"tunedex": "problems", "version": 1, "problems": [], "problems": []}', "'problems' is given twice"),
        (b'{"tunedex": "problems", "version": 1, "problems": [{"share": NaN}]}', "NaN is no number"),
        (b'{"tunedex": "problems", "version": 1}', "problems is not a list"),
        (b'{"tunedex": "problems", "version": 1, "problems": []}', "problems is empty"),
    ],
)
def test_what_is_no_problem_file_is_refused_in_one_line(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "problems.json"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=words):
        read_problems(path)
    with pytest.raises(BadInput, match="cannot be read"):
        read_problems(tmp_path / "absent.json")


def test_a_file_without_end_is_not_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (Path("/dev/zero"), pipe):
        with pytest.raises(BadInput, match="is no regular file"):
            read_problems(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(DOCUMENT_BYTES + 1)
    with pytest.raises(BadInput, match=f"at most {DOCUMENT_BYTES} are read"):
        read_problems(path)
