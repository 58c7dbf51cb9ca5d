"""`tuner profile` on real programs, and `tuner sweep` on what it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tunedex.cli.app import run
from tunedex.core.host import cpu
from tunedex.tuner.problem_file import read_problems

MODEL = """
import sys
print("said")
import torch

model = torch.nn.Sequential(torch.nn.Linear(48, 64), torch.nn.GELU("tanh"), torch.nn.Softmax(-1))
x = torch.randn(16, 48)
for _ in range(3):
    model(x).sum().backward()
with torch.no_grad():
    model(x)
if len(sys.argv) > 1:
    sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(MODEL)
    return path


def tuner(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tunedex", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=240)


def test_a_program_s_problems_are_swept(script: Path, tmp_path: Path) -> None:
    done = tuner(tmp_path, "profile", "--", sys.executable, "script.py", "3")
    assert (done.returncode, done.stdout) == (3, "said\n")
    assert "Traceback" not in done.stderr
    assert "2 problems in problems.json; tune them with `tuner sweep --problems problems.json`" in done.stderr
    table = [line.split() for line in done.stderr.splitlines()]
    assert ["softmax", "rows=16,cols=64,dtype=float32", "4"] in [row[:3] for row in table]
    assert "aten::gelu_backward" in done.stderr  # which no kernel covers

    document = json.loads((tmp_path / "problems.json").read_text())
    assert document["device"]["key"] == cpu().key
    assert document["environment"]["torch"]
    assert document["command"].endswith("script.py 3")
    assert {each["kernel"]: (each["calls"], each["gradient_calls"]) for each in document["problems"]} == {
        "softmax": (4, 3),
        "linear_gelu": (4, 3),
    }
    assert 0 < sum(each["share"] for each in document["problems"]) < 1

    options = ("--device", "cpu", "--db", str(tmp_path / "tunedex.db"), "--trials", "2", "--budget", "2m", "--json")
    swept = tuner(tmp_path, "sweep", "--problems", "problems.json", *options)
    assert swept.returncode == 0, swept.stderr
    results = json.loads(swept.stdout)["results"]
    wanted = [problem.to_dict() for problem in read_problems(tmp_path / "problems.json").problems]
    assert [result["problem"] for result in results] == wanted
    assert all(result["best_us"] for result in results)


def test_json_is_alone_on_standard_output(script: Path, tmp_path: Path) -> None:
    done = tuner(tmp_path, "profile", "--json", "--out", "other.json", "--", sys.executable, "script.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((tmp_path / "other.json").read_text())
    assert "said\n" in done.stderr


def test_a_module_is_run_and_an_error_is_the_program_s_own(script: Path, tmp_path: Path) -> None:
    script.write_text(MODEL + "\nmodel(torch.randn(16, 47))\n")
    plain = subprocess.run(
        [sys.executable, "-m", "script"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    done = tuner(tmp_path, "profile", "--", sys.executable, "-m", "script")
    assert done.returncode == plain.returncode == 1
    assert plain.stderr.splitlines()[-1] in done.stderr.splitlines()
    assert len(read_problems(tmp_path / "problems.json").problems) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["-c", "print(5)"], 2, "the program runs none, or is no Python that reads PYTHONPATH"),
        (["-c", "print(5); raise SystemExit(4)"], 4, "the program ended with exit code 4"),
        (["-I", "-c", MODEL], 2, "the program runs none, or is no Python that reads PYTHONPATH"),
        (["no_such_script.py"], 2, "the program ended with exit code 2"),
    ],
)
def test_a_program_without_torch_has_no_problems(arguments: list[str], code: int, words: str, tmp_path: Path) -> None:
    done = tuner(tmp_path, "profile", "--", sys.executable, *arguments)
    assert done.returncode == code
    assert done.stderr.splitlines()[-1].startswith(f"no torch operator seen: {words}")
    assert not (tmp_path / "problems.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--", "no-such-program"], "there is no program 'no-such-program' to run"),
        (["--out", "{folder}/no/p.json", "--", "python"], "there is no folder"),
        (["--out", "{folder}/script.py", "--", "python"], "is there and is no problem file"),
        (["--out", "{folder}", "--", "python"], "is no regular file"),
        (["--out", "/dev/full", "--", "python"], "is no regular file"),
        ([], "PROGRAM"),
        (["--outt", "x", "--", "python"], "No such option"),
    ],
)
def test_a_wrong_call_is_one_line(
    arguments: list[str], words: str, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", *(each.format(folder=tmp_path) for each in arguments)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert said.err.count("\n") == 1
    assert script.read_text() == MODEL


def test_a_sweep_refuses_a_wrong_problem_file_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "problems.json"
    entry = {"kernel": "softmax", "dims": {"rows": 4, "cols": 8}, "dtypes": {"x": "float32"}}
    path.write_text(json.dumps({"tunedex": "problems", "version": 1, "problems": [entry]}))
    command = ["sweep", "--device", "cpu", "--db", str(tmp_path / "t.db"), "--problems"]
    assert run([*command, str(path), "--kernels", "linear_gelu"]) == 2
    assert "holds no problem of the kernels that --kernels allows" in capsys.readouterr().err
    assert run([*command, str(tmp_path / "absent.json")]) == 2
    assert "absent.json cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "t.db").exists()


def test_a_program_that_no_kernel_serves_leaves_an_older_file(tmp_path: Path) -> None:
    path = tmp_path / "problems.json"
    program = (sys.executable, "-c", "import torch; torch.ones(4) + 1")
    assert tuner(tmp_path, "profile", "--", *program).returncode == 0
    assert json.loads(path.read_text())["problems"] == []
    entry = {"kernel": "softmax", "dims": {"rows": 4, "cols": 8}, "dtypes": {"x": "float32"}}
    before = json.dumps({"tunedex": "problems", "version": 1, "problems": [entry]})
    path.write_text(before)
    done = tuner(tmp_path, "profile", "--", *program)
    assert done.returncode == 0
    assert "0 problems, so there is nothing to tune; problems.json is left as it was" in done.stderr
    assert path.read_text() == before
