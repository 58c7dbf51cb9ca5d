"""Sweeps on a real GPU, as they are run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tunedex.core.device import Device
from tunedex.core.measurement import Failure, Measurement, Policy
from tunedex.db import open_store
from tunedex.db.records import Stage
from tunedex.tuner.devices import detect

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

ROOT = Path(__file__).parents[2]
PLANTED = ROOT / "tests" / "tuner" / "planted"


@pytest.fixture(scope="module")
def device() -> Device:
    return detect("cuda:0")[0].device


def measured(outcome: Measurement | Failure) -> Measurement:
    assert isinstance(outcome, Measurement), outcome
    return outcome


class TestSweep:
    @staticmethod
    def tuner(*arguments: str, path: Sequence[Path] = ()) -> dict[str, Any]:
        """The document that a command prints; it runs from the checkout, installed or not."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*map(str, [*path, ROOT]), os.environ.get("PYTHONPATH", "")]),
        }
        done = subprocess.run(
            [sys.executable, "-m", "tunedex", *arguments, "--json"],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def test_every_planted_fault_costs_one_trial(self, device: Device, tmp_path: Path) -> None:
        db = str(tmp_path / "tunedex.db")
        problem = "planted:rows=37,cols=61,dtype=float32"
        document = self.tuner("sweep", "--device", "cuda:0", "--db", db, "--problem", problem, path=[PLANTED])
        (result,) = document["results"]
        assert document["device"]["key"] == device.key
        assert result["failures"] == {"crash": 3, "oom": 1, "out_of_resources": 1, "wrong_result": 4}
        with open_store(db) as store:
            outcomes = {
                trial.config.values.get("fault", "library"): trial.outcome
                for trial in store.list_trials(limit=1000).items
                if trial.stage is Stage.SEARCH
            }
        assert len(outcomes) == result["trials"]
        for fault in ("none", "library"):
            assert measured(outcomes[fault]).policy is Policy.GRAPH_COLD
        details = {fault: outcome.detail for fault, outcome in outcomes.items() if isinstance(outcome, Failure)}
        assert "[0, 36, 60]" in details["wrong_last"]
        assert details["operand"].endswith("operand x was changed")
        assert details["beside"].endswith("memory beside the output was written")
        assert "SIGABRT" in details["abort"]

    def test_what_a_sweep_finds_is_what_a_lookup_answers(self, device: Device, tmp_path: Path) -> None:
        db = str(tmp_path / "tunedex.db")
        problem = "softmax:batch=2,rows=1024,cols=4224,dtype=bfloat16"
        document = self.tuner("sweep", "--device", "cuda:0", "--db", db, "--problem", problem, "--trials", "8")
        (result,) = document["results"]
        assert result["trials"] >= 8
        assert result["config"]
        parameters = problem.partition(":")[2].split(",")
        answer = self.tuner("lookup", "softmax", *parameters, "--device", device.key, "--db", db)
        assert answer["match"] == "exact"
        assert answer["config"] == result["config"]
        assert answer["revision"] == document["revision"]
