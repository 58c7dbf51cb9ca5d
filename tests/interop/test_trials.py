"""Exports: what is written is read back, and as a recording it has one time a config."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tunedex.core.canonical import finite
from tunedex.core.catalog import builtin_signatures
from tunedex.core.config import Config
from tunedex.core.device import Device, Environment
from tunedex.core.errors import BadInput
from tunedex.core.measurement import Failure, FailureKind, Measurement, Policy
from tunedex.core.problem import Problem
from tunedex.db import Store, open_store
from tunedex.db.records import Stage, Trial
from tunedex.interop.recordings import read_recordings
from tunedex.interop.trials import is_export, read_trial_sets, trial_sets, write_trial_sets

DEVICE = replace(
    Device.from_key("nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"),
    name="NVIDIA H200",
    attributes={"uuid": "GPU-1", "ecc": True},
)
OTHER = Device.from_key("cpu-some_model-8c-avx2")
ENVIRONMENT = Environment(driver="580.1", cuda="13.0", torch="2.13.0", triton="3.7.1", python="3.11")
(SIGNATURE,) = (signature for signature in builtin_signatures() if signature.kernel == "softmax")


def problem(rows: int = 64) -> Problem:
    return SIGNATURE.problem({"rows": rows, "cols": 256, "dtype": "float32"})


def trial(block: int, time_us: float | None, *, stage: Stage = Stage.SEARCH, of: Problem | None = None) -> Trial:
    return Trial(
        problem=of or problem(),
        device=DEVICE.key,
        environment=ENVIRONMENT.key,
        kernel_version="0123456789ab",
        config=Config("triton", {"block": block}),
        outcome=Failure(FailureKind.TIMEOUT, "took too long")
        if time_us is None
        else Measurement(time_us, 0.9 * time_us, 1.1 * time_us, 20, Policy.EAGER_COLD, 1e-7, True, "ab12"),
        stage=stage,
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "tunedex.db")) as opened:
        for device in (DEVICE, OTHER):
            opened.register_device(device)
        opened.register_environment(ENVIRONMENT)
        opened.add_trials(
            [
                trial(128, 4000.0),
                trial(32, 2000.0),
                trial(64, None),
                trial(32, 1900.0, stage=Stage.FINAL),
                trial(256, 9000.0, stage=Stage.FINAL),
                trial(32, 5.0, of=problem(rows=128)),
                replace(trial(32, 7.0), device=OTHER.key),
                replace(trial(32, 6.0), kernel_version="fedcba987654"),
            ]
        )
        yield opened


def test_trials_are_read_back_as_they_were(store: Store, tmp_path: Path) -> None:
    sets = trial_sets(store)
    assert [len(each.trials) for each in sets] == [5, 1, 1, 1]
    write_trial_sets(tmp_path / "out.json.gz", sets)
    back = read_trial_sets(tmp_path / "out.json.gz")
    for ours, theirs in zip(sets, back, strict=True):
        # the numbers of one database mean nothing in another, and what tells one board from another stays here
        assert [replace(each, id=None, sweep=None) for each in ours.trials] == list(theirs.trials)
        assert theirs.device == ours.device
        assert (theirs.environment, theirs.versions) == (ENVIRONMENT.key, ENVIRONMENT)
    assert back[0].device.attributes == {"ecc": True}


def test_equal_trials_give_an_equal_file_and_the_space_is_in_it(store: Store, tmp_path: Path) -> None:
    first, second = tmp_path / "a.json.gz", tmp_path / "b.json.gz"
    for path in (first, second):
        write_trial_sets(path, trial_sets(store))
    assert first.read_bytes() == second.read_bytes()
    (document, *_) = json.loads(gzip.decompress(first.read_bytes()))["sets"]
    assert document["space"] == {"implementation": ["triton"], "block": [32, 64, 128, 256]}
    assert document["kernel"] == "softmax"
    assert document["device"]["name"] == "NVIDIA H200"
    assert document["trials"][2]["failure"] == {"kind": "timeout", "detail": "took too long"}


def test_an_export_is_chosen_by_device_kernel_and_problem(store: Store) -> None:
    assert [each.device.key for each in trial_sets(store, device=OTHER.key)] == [OTHER.key]
    assert [each.problem for each in trial_sets(store, problem=problem(rows=128))] == [problem(rows=128)]
    assert trial_sets(store, kernel="linear_gelu") == []


def test_as_a_recording_each_problem_has_one_time_a_config(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_trial_sets(path, trial_sets(store))
    recordings = read_recordings(path)
    text = "softmax:rows=64,cols=256,dtype=float32"
    assert [each.name for each in recordings] == [
        f"out:{text} @ {DEVICE.key} @ 0123456789ab",
        "out:softmax:rows=128,cols=256,dtype=float32",
        f"out:{text} @ {OTHER.key} @ 0123456789ab",
        f"out:{text} @ {DEVICE.key} @ fedcba987654",
    ]
    first = recordings[0]
    assert (first.kernel, first.device_name) == ("softmax", "NVIDIA H200")
    assert first.parameters == ("implementation", "block")
    assert [config["block"] for config in first.configs] == [128, 32, 64, 256]
    # of the search where there is one, since a final times its few leaders otherwise; in milliseconds
    assert first.times_ms == (4.0, 2.0, None, 9.0)


def test_a_damaged_export_names_what_is_wrong(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_trial_sets(path, trial_sets(store))
    whole = json.loads(path.read_text())
    for damage, words in [
        (lambda trial: trial.update(measurement=None), "of measurement and failure one is null"),
        (lambda trial: trial["measurement"].update(time_us=-1.0), "time_us -1.0 is not a time above 0"),
        (lambda trial: trial["measurement"].update(time_us="fast"), "'fast' is not a finite number"),
        (lambda trial: trial.pop("stage"), "'stage' is missing"),
        (lambda trial: trial["config"].pop("implementation"), "a config has no implementation"),
    ]:
        document = json.loads(json.dumps(finite(whole)))
        damage(document["sets"][0]["trials"][0])
        path.write_text(json.dumps(document))
        with pytest.raises(BadInput, match=words) as refused:
            read_trial_sets(path)
        assert str(path) in str(refused.value)


def test_an_export_is_told_from_other_files(store: Store, tmp_path: Path) -> None:
    write_trial_sets(tmp_path / "out.json.gz", trial_sets(store))
    assert is_export((tmp_path / "out.json.gz").read_bytes())
    assert not is_export(b"{}")
    assert not is_export(b"\x1f\x8b and so on")
