"""`tuner recommend`: on a real sweep of several batches, and one line for bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tunedex.cli.app import run
from tunedex.db import open_store
from tunedex.tuner.settings import SETTINGS

ITEM = ["rows=64", "cols=256", "dtype=float32"]
PROBLEM = "softmax:batch=auto,rows=64,cols=256,dtype=float32"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database after a short sweep of this host's CPU that lets the search choose the batch."""
    database = tmp_path_factory.mktemp("swept") / "tunedex.db"
    sweep = ["sweep", "--device", "cpu", "--problem", PROBLEM, "--trials", "12", "--db", str(database), "--json"]
    swept = subprocess.run(
        [sys.executable, "-m", "tunedex", *sweep], capture_output=True, text=True, timeout=240, check=False
    )
    assert swept.returncode == 0, swept.stderr
    return database


def asked(capsys: pytest.CaptureFixture[str], command: str, database: Path, *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run([command, "softmax", *ITEM, *arguments, "--device", "cpu", "--db", str(database), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == (
        "" if database.exists() else f"there is no database {database} yet, so the answer is the kernel's default\n"
    )
    document: dict[str, Any] = json.loads(out)
    return document


def test_a_sweep_over_batches_is_what_recommendations_are_made_of(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_store(str(swept)) as store:
        times = {best.problem.batch: best.row.measurement.time_us for best in store.list_bests(limit=1000).items}
    assert len(times) > 1
    assert set(times) <= set(SETTINGS.batches)

    found = asked(capsys, "recommend", swept, "--objective", "throughput")
    batch, rate = found.pop("batch"), found.pop("items_per_s")
    assert batch in times
    assert rate == pytest.approx(batch / found["time_us"] * 1e6)
    assert found == asked(capsys, "lookup", swept, f"batch={batch}")
    for other in times:
        at_other = asked(capsys, "lookup", swept, f"batch={other}")
        assert rate >= 0.98 * other / at_other["time_us"] * 1e6

    quickest = asked(capsys, "recommend", swept)
    assert all(asked(capsys, "lookup", swept, f"batch={b}")["time_us"] >= 0.98 * quickest["time_us"] for b in times)
    bounded = asked(capsys, "recommend", swept, "objective=throughput", f"max_latency_us={quickest['time_us']}")
    assert bounded["time_us"] <= quickest["time_us"]


def test_for_people_it_prints_the_batch_its_rate_and_the_config(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = asked(capsys, "recommend", swept, "--objective", "throughput")
    asked_for = ["recommend", "softmax", *ITEM, "--objective", "throughput", "--device", "cpu", "--db", str(swept)]
    assert run(asked_for) == 0
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines() if line.strip())
    assert lines["batch"].strip() == str(found["batch"])
    assert lines["rate"].endswith("items/s")
    assert lines["match"].strip() == "exact"
    assert lines["policy"].strip() == found["policy"]
    assert (f"batch={found['batch']}," in lines["problem"]) is (found["batch"] > 1)


def test_without_a_database_it_is_one_item_with_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "recommend", tmp_path / "new.db")
    assert (found["batch"], found["items_per_s"], found["match"]) == (1, None, "default")
    assert found["config"]["implementation"]
    assert "is not tuned at any batch" in found["reason"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["softmax", *ITEM, "batch=4"], "batch=4 is given, and the batch is what is recommended"),
        (["softmax", *ITEM, "batch=auto"], "batch=auto is given"),
        (["softmax", *ITEM, "--objective", "luck"], "objective 'luck' is unknown; known are latency, throughput"),
        (["softmax", *ITEM, "objective=error", "--objective", "memory"], "objective is given twice"),
        (["softmax", "rows=64", "dtype=float32"], "needs cols"),
        (["softmax", "rows=0", "cols=8", "dtype=float32"], "nothing to compute"),
        (["nope", *ITEM], "kernel 'nope' is unknown"),
        (["softmax", *ITEM, "--channel", "beta"], "channel 'beta' is unknown"),
        (["softmax", *ITEM, "--revision", "7"], "revision 7 is unknown"),
        (["softmax", *ITEM, "--revision", "-1"], "--revision -1 is negative"),
        (["softmax", *ITEM, "--device", "my-gpu"], "not a device key"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run(["recommend", "--db", str(tmp_path / "new.db"), *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
    assert list(tmp_path.iterdir()) == []
