"""The crash matrix: a sweep over configs that fail in every way, and whether each cost one trial of its kind.

    python benchmarks/crash_matrix.py --device cpu

The configs are those of `tests/tuner/planted/planted_faults.py`; the sweep is the real `tuner sweep`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PLANTED = ROOT / "tests" / "tuner" / "planted"

#: Longest that a config may take: little, for several of them hang; on CUDA a kernel's first launch compiles it.
TRIAL_TIMEOUT = {"cpu": "5s", "cuda": "20s"}
SWEEP_TIMEOUT_S = 570

RECORDED = "recorded"
#: The configs that do nothing wrong, before and after those that do: they are to be measured.
INNOCENT = "innocent"


def crash_matrix(device_selector: str, db: Path | None = None) -> dict[str, str]:
    """Sweep the planted configs on the device and say of each kind of failure, and of the innocent configs, that each
    trial is ``recorded`` as it should be, or what went wrong. The trials are kept in ``db`` where it is given."""
    for folder in (ROOT, PLANTED):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    import planted_faults

    from tunedex.tuner.devices import detect

    device = detect(device_selector)[0].device
    expected = planted_faults.faults(device)
    with tempfile.TemporaryDirectory() as folder:
        kept = db or Path(folder) / "crash-matrix.db"
        fault = _sweep(device_selector, planted_faults.problem(device), TRIAL_TIMEOUT[device.kind], kept)
        found = _outcomes(kept) if kept.exists() else {}
    matrix: dict[str, list[str]] = defaultdict(list)
    for name, kind in expected.items():
        wanted = kind.value if kind else "measured"
        wrong = matrix[kind.value if kind else INNOCENT]
        if found.get(name, []) != [wanted]:
            wrong.append(f"{name}: {', '.join(found.get(name, [])) or 'no trial'} instead of {wanted}")
        if fault:
            wrong.append(fault)
    return {kind: "; ".join(dict.fromkeys(wrong)) or RECORDED for kind, wrong in sorted(matrix.items())}


def _sweep(device_selector: str, problem: str, trial_timeout: str, db: Path) -> str:
    """Run the sweep; what went wrong with it as a whole, empty where nothing did."""
    path = [str(PLANTED), str(ROOT), os.environ.get("PYTHONPATH", "")]
    options = ["--device", device_selector, "--db", str(db), "--problem", problem, "--trial-timeout", trial_timeout]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tunedex", "sweep", *options, "--json"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            capture_output=True,
            text=True,
            timeout=SWEEP_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the sweep took longer than {SWEEP_TIMEOUT_S} s"
    if done.returncode != 0:
        return f"the sweep exited with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
    if json.loads(done.stdout)["results"][0]["config"] is None:
        return "the sweep found no config"
    return ""


def _outcomes(db: Path) -> dict[str, list[str]]:
    """The kinds of the trials of each planted config's search, ``measured`` for a measurement."""
    from tunedex.core.measurement import Failure
    from tunedex.db import open_store
    from tunedex.db.records import Stage

    found: dict[str, list[str]] = defaultdict(list)
    with open_store(str(db)) as store:
        for trial in store.list_trials(limit=1000).items:
            if trial.stage is Stage.SEARCH:
                outcome = trial.outcome
                kind = outcome.kind.value if isinstance(outcome, Failure) else "measured"
                found[str(trial.config.values.get("fault", "library"))].append(kind)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="auto, cuda, cuda:N or cpu")
    parser.add_argument("--db", type=Path, help="where to keep the trials; default nowhere")
    options = parser.parse_args()
    matrix = crash_matrix(options.device, options.db)
    from tunedex.tuner.devices import detect, environment_of

    device = detect(options.device)[0].device
    document: dict[str, Any] = {
        "device": device.to_dict(),
        "environment": environment_of(device).to_dict(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python benchmarks/crash_matrix.py", *sys.argv[1:]]),
        "crash_matrix": matrix,
    }
    print(json.dumps(document, indent=2))
    return 0 if set(matrix.values()) == {RECORDED} else 1


if __name__ == "__main__":
    raise SystemExit(main())
