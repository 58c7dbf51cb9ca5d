"""The benchmarks run, and write documents of the shape that others read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tunedex.db.records import Stage
from tunedex.interop.trials import read_trial_sets

ROOT = Path(__file__).parents[1]
ROW = {"kernel", "problem", "bytes", "flops", "implementation", "ours_us", "served_us", "default_us", "library_us"}
ROW |= {"peers_us", "ratio_to_best_peer", "share_of_copy", "share_of_peak", "error", "peer_error"}


def test_the_quick_benchmark(tmp_path: Path) -> None:
    out = tmp_path / "results" / "first-light.json"
    problem = "softmax:rows=16,cols=64,dtype=float32"
    options = ["--device", "cpu", "--problem", problem, "--trials", "4", "--skip", "compile,max_autotune"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "first_light.py"), *options, "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    assert {"device", "environment", "date", "command", "copy_tb_s", "rows"} <= set(document)
    (row,) = document["rows"]
    assert set(row) >= ROW
    assert set(row["peers_us"]) == {"eager"}
    assert row["ratio_to_best_peer"] == row["peers_us"]["eager"] / row["ours_us"]
    (exported,) = read_trial_sets(out.with_suffix(".trials.json.gz"))
    assert len(exported.trials) == document["trials"]
    assert sum(trial.stage is Stage.SEARCH for trial in exported.trials) == 4
