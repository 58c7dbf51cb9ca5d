"""Recordings: Kernel Tuner's caches in every state that a run leaves them in, and what is none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from caches import ENTRIES, cache, open_cache

from tunedex.core.errors import BadInput
from tunedex.interop.recordings import Recording, read_recordings


def written(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def read(path: Path, document: Any) -> Recording:
    (found,) = read_recordings(written(path, json.dumps(document)))
    return found


@pytest.mark.parametrize("name", ["made_up__A4000.json", "made_up__A4000.json.gz"])
def test_a_cache_is_read_plain_or_packed(tmp_path: Path, name: str) -> None:
    found = read(tmp_path / name, cache())
    assert (found.name, found.kernel, found.device_name) == ("made_up__A4000", "made_up", "NVIDIA RTX A4000")
    assert found.parameters == ("block", "tile", "path")
    assert found.configs[3] == {"block": 64, "tile": 2, "path": "vector"}
    # `time`, which Kernel Tuner ranks by, and not a statistic of `times`
    assert found.times_ms == (4.0, 2.0, None, 1.0, 1.04, None)


@pytest.mark.parametrize(
    "time", ["InvalidConfig", "a word of a later version", float("nan"), float("inf"), 0.0, -1.0, None, True, [1.0]]
)
def test_what_is_no_time_is_a_failure(tmp_path: Path, time: object) -> None:
    found = read(tmp_path / "cache.json", cache([((32, 1, "plain"), time), ((64, 1, "plain"), 2.0)]))
    assert found.times_ms == (None, 2.0)


def test_an_entry_that_says_error_is_a_failure_whatever_its_time(tmp_path: Path) -> None:
    document = cache(schema_version="1.0.0")
    document["cache"]["32,1,plain"]["__error__"] = "InvalidConfig"
    assert read(tmp_path / "cache.json", document).times_ms[0] is None


def test_a_parameter_with_one_value_is_kept(tmp_path: Path) -> None:
    document = cache()
    document["tune_params_keys"] = [*document["tune_params_keys"], "filter"]
    for entry in document["cache"].values():
        entry["filter"] = 15
    assert read(tmp_path / "cache.json", document).configs[0]["filter"] == 15


def test_the_cache_of_a_run_that_was_cut_is_read_up_to_there(tmp_path: Path) -> None:
    text = open_cache(cache())
    (whole,) = read_recordings(written(tmp_path / "open.json", text))
    assert len(whole.configs) == len(ENTRIES)
    for cut in range(1, len(text.rpartition("\n")[2])):  # anywhere within the last entry
        (found,) = read_recordings(written(tmp_path / "cut.json", text[:-cut]))
        assert len(found.configs) >= len(ENTRIES) - 1
        assert found.configs == whole.configs[: len(found.configs)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no JSON"),
        ("[1, 2]", "is no JSON object"),
        ("{}", "neither a Kernel Tuner cache nor an export"),
        ('{"cache": [1]}', "neither a Kernel Tuner cache nor an export"),
        (json.dumps(cache())[:40], "is no JSON"),
        (json.dumps(cache(tune_params_keys="block")), "tune_params_keys is no list of names"),
        (json.dumps(cache(tune_params_keys=["block", "warps"])), "the entry 32,1,plain has no warps"),
        (json.dumps(cache(tune_params_keys=["times"])), "times of the entry 32,1,plain is neither"),
        (json.dumps(cache(tune_params_keys=["tile"])), "a config is in it twice"),
        (json.dumps(cache([((32, 1, "plain"), "RuntimeFailedConfig")])), "no config of bad has a time"),
        (json.dumps(cache([])), "no config of bad has a time"),
        (json.dumps({**cache(), "cache": {"1": 2}}), "the entry 1 is no object"),
        ('{"format": "tunedex-trials", "version": 9, "sets": []}', "version 9 of an export is not 1"),
        ('{"format": "tunedex-trials", "version": 1, "sets": []}', "there is no trial in it"),
        ('{"format": "tunedex-trials", "version": 1, "sets": [{}]}', "a set of trials in it cannot be read"),
        ("[" * 100_000, "is no JSON"),
    ],
)
def test_what_is_no_recording_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path / "bad.json", text)
    with pytest.raises(BadInput) as refused:
        read_recordings(path)
    assert words in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_files_that_cannot_be_read_are_refused_in_one_line(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps(cache()).encode())
    for content, words in [
        (packed[:-20], "gzip file that was cut"),
        (packed[:30] + b"\0\0\0\0" + packed[34:], "damaged gzip file"),
        (b"\xff\xfe", "is no UTF-8 text"),
    ]:
        path = tmp_path / "bad.json.gz"
        path.write_bytes(content)
        with pytest.raises(BadInput, match=words):
            read_recordings(path)
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        read_recordings(tmp_path / "none.json")
    with pytest.raises(BadInput, match="cannot be read: Is a directory"):
        read_recordings(tmp_path)
