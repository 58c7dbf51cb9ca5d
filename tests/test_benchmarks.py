"""The benchmarks run, and write documents of the shape that others read."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tunedex.core.catalog import builtin_signatures
from tunedex.core.config import Config
from tunedex.core.device import Device, Environment
from tunedex.core.measurement import Measurement, Policy
from tunedex.db import open_store
from tunedex.db.records import Stage, Trial
from tunedex.interop.trials import read_trial_sets, write_trial_sets

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


@pytest.fixture
def bowls(tmp_path: Path) -> Path:
    """A folder of two recordings of one space of 64 configs."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    for name, slope in (("bowl__A", 1), ("bowl__B", 2)):
        times = {(x, y): 1.0 + slope * abs(x - 5) + abs(y - 3) for x in range(8) for y in range(8)}
        entries = {f"{x},{y}": {"x": x, "y": y, "time": time} for (x, y), time in times.items()}
        head = {"device_name": name, "kernel_name": "bowl", "tune_params_keys": ["x", "y"]}
        (folder / f"{name}.json").write_text(json.dumps({**head, "cache": entries}))
    return folder


def test_the_benchmark_of_searches(tmp_path: Path, bowls: Path) -> None:
    out, raw = tmp_path / "results" / "search.json", tmp_path / "raw.json"

    def ran(samplers: str) -> str:
        options = ["--recordings", str(bowls), "--seeds", "6", "--out", str(out), "--raw", str(raw)]
        command = [sys.executable, str(ROOT / "benchmarks" / "search.py"), *options, "--samplers", samplers]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "mean loss, 2 spaces" in ran("random")
    kept = json.loads(out.read_text())["recordings"]["bowl__A"]["random"]
    ran("tpe")
    document = json.loads(out.read_text())
    assert {"device", "environment", "date", "command", "recordings", "warm", "near", "ms_per_trial"} <= set(document)
    assert document["recordings"]["bowl__A"]["random"] == kept
    for recording in ("bowl__A", "bowl__B"):
        cells = document["recordings"][recording]
        assert set(cells) == {"random", "tpe"}
        for cell in cells.values():
            assert list(cell["loss"]) == ["10", "20", "50", "100", "200"]
            assert cell["loss"]["100"] == 0  # of 64 configs, all were tried
            assert (cell["configs"], cell["seeds"]) == (64, 6)
    assert set(document["summary"]["mean_loss"]["50"]) == {"random", "tpe"}
    assert len(json.loads(raw.read_text())["bowl__A"]["tpe"]["loss"]["10"]) == 6


def test_leaving_problems_out(tmp_path: Path) -> None:
    """What would be served for each of three sizes, asked of the other two."""
    spec = importlib.util.spec_from_file_location("near_benchmark", ROOT / "benchmarks" / "near.py")
    assert spec is not None
    assert spec.loader is not None
    near = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = near
    spec.loader.exec_module(near)
    device = Device.from_key("cpu-some_model-8c-avx2")
    softmax = next(signature for signature in builtin_signatures() if signature.kernel == "softmax")
    path = tmp_path / "tunedex.db"
    with open_store(str(path)) as store:
        store.register_device(device)
        store.register_environment(Environment(python="3.11"))
        for rows, times in {64: (10.0, 12.0), 128: (11.0, 10.0), 256: (10.0, 12.0)}.items():
            problem = softmax.problem({"rows": rows, "cols": 512, "dtype": "float32"})
            default = softmax.default(problem, device)
            assert default is not None
            configs = (Config("numba", {"block": 1}), Config("numba", {"block": 2}), default)
            for config, time_us in zip(configs, (*times, 40.0), strict=True):
                measured = Measurement(time_us, time_us, time_us, 9, Policy.EAGER_COLD, 1e-7, True, "bits")
                key = Environment(python="3.11").key
                for stage in Stage:
                    store.add_trial(Trial(problem, device.key, key, softmax.version, config, measured, stage))
    found = near.measure([path])
    assert [row["match"] for row in found["rows"]] == ["default", "near", "default"]
    assert found["near"]["count"] == 1
    assert found["near"]["mean_loss"] == pytest.approx(0.1)
    assert found["served"]["mean_loss"] == pytest.approx((3.0 + 0.1 + 3.0) / 3)
    # Were everything verified everywhere, 64 and 256 would be answered with the first as well.
    assert found["ranking"]["mean_loss"] < found["served"]["mean_loss"]
    out = tmp_path / "near.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "near.py"), str(path), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())["near"] == found["near"]
    command[2] = str(tmp_path / "absent.json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_searching_one_shape_from_the_others(tmp_path: Path) -> None:
    """On the brute force of the results: warm is near the optimum after two trials, cold is not."""
    found = read_trial_sets(ROOT / "benchmarks" / "results" / "cpu" / "near.trials.json.gz")
    chosen = [each for each in found if each.problem.kernel == "linear_gelu"][:3]
    path, out = tmp_path / "some.trials.json.gz", tmp_path / "warm.json"
    write_trial_sets(path, chosen)
    command = [sys.executable, str(ROOT / "benchmarks" / "warm.py"), str(path), "--seeds", "2", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    assert document["problems"] == 3
    assert document["warm"]["2"] < 0.05 < document["cold"]["2"]
    assert {row["sources"] for row in document["rows"]} == {2}
    command[2] = str(tmp_path / "absent.json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_opening_a_large_space(tmp_path: Path) -> None:
    out = tmp_path / "space.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "space.py"), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    assert document["configs"] > 10**6
    assert min(document[name] for name in ("open_s", "search_s", "ask_s")) > 0


def test_settings_that_were_chosen_elsewhere(tmp_path: Path, bowls: Path) -> None:
    out = tmp_path / "left_out.json"
    options = ["--recordings", str(bowls), "--seeds", "1", "--out", str(out)]
    command = [sys.executable, str(ROOT / "benchmarks" / "settings_left_out.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    assert {row["recording"] for row in document["recordings"]} == {"bowl__A", "bowl__B"}
    assert document["mean"]["left_out"]["100"] == 0  # of 64 configs, all were tried
    for row in document["recordings"]:
        assert row["best_here"]["50"] <= row["left_out"]["50"]
        assert row["chosen"] in document["choices"]
