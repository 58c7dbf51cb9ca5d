"""Programs of somebody's own, unchanged, as they are seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from profiles import problems, profiled_script

from tunedex.tuner.settings import SETTINGS

SOFTMAX = "torch.softmax(torch.randn({rows}, 16), -1)"


def test_threads_forks_and_other_pythons_are_seen(tmp_path: Path) -> None:
    code = f"""
import multiprocessing, os, subprocess, sys, threading, torch
from concurrent.futures import ThreadPoolExecutor

def work(rows):
    {SOFTMAX.format(rows="rows")}

if __name__ == "__main__":
    torch.set_num_threads(1)
    work(1)
    threads = [threading.Thread(target=work, args=(2,)) for _ in range(2)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work, 3).result()
    for rows, method in ((4, "fork"), (5, "spawn")):
        process = multiprocessing.get_context(method).Process(target=work, args=(rows,))
        process.start(), process.join()
    if os.fork() == 0:
        work(6)
        sys.exit()
    os.wait()
    subprocess.run([sys.executable, "-c", "import torch; {SOFTMAX.format(rows=7)}"], check=True)
"""
    profile = profiled_script(tmp_path, code)
    assert profile.exit_code == 0
    assert problems(profile) == {
        f"softmax:rows={rows},cols=16,dtype=float32": 2 if rows == 2 else 1 for rows in range(1, 8)
    }
    assert profile.processes == 5


def test_what_torch_offers_beside_works_as_without(tmp_path: Path) -> None:
    """Tensors that wrap others, fake ones, transforms, a compiled region, which stays compiled; and what they run
    inside is seen where it runs."""
    code = """
import sys, torch
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map_only

class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made
    def __init__(self, inner): pass
    def __tensor_flatten__(self): return ["inner"], None
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        result = func(*tree_map_only(cls, lambda t: t.inner, args), **(kwargs or {}))
        return tree_map_only(torch.Tensor, cls, result)

assert "torch._dynamo" not in sys.modules
torch.cos(torch.ones(2))
assert "torch._dynamo" not in sys.modules
assert type(torch.softmax(Wrapped(torch.randn(2, 16)), -1)) is Wrapped
with FakeTensorMode():
    assert torch.softmax(torch.randn(3, 16), -1).shape == (3, 16)
torch.func.vmap(lambda t: torch.softmax(t, -1))(torch.randn(4, 16))
torch.eye(3).to_sparse() * 2
graphs = []
def backend(graph, inputs):
    graphs.append(graph)
    return lambda *given: [given[-1] + 1]
torch.compile(lambda t: torch.softmax(t, -1), backend=backend)(torch.zeros(5, 16))
assert len(graphs) == 1
"""
    profile = profiled_script(tmp_path, code)
    assert profile.exit_code == 0
    assert problems(profile) == {f"softmax:rows={rows},cols=16,dtype=float32": 1 for rows in (2, 4)}
    assert "graphs of torch.compile, in which nothing is seen or timed: 1" in profile.notes


def test_a_program_s_own_start_runs_and_its_path_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins; builtins.own_start = __file__\n")
    monkeypatch.setenv("PYTHONPATH", f"{own}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    code = """
import sys, pathlib
assert own_start == sys.modules["sitecustomize"].__file__
assert not any("tunedex-profile-" in entry for entry in sys.path)
import torch
assert type(torch.__spec__.loader) is type(pathlib.__spec__.loader) and torch.__loader__ is torch.__spec__.loader
assert not any(type(finder).__module__ == "sitecustomize" for finder in sys.meta_path)
assert not any(name.startswith("tunedex") for name in sys.modules), [n for n in sys.modules if "tunedex" in n]
torch.softmax(torch.randn(2, 16), -1)
"""
    profile = profiled_script(tmp_path, code)
    assert profile.exit_code == 0
    assert len(profile.problems) == 1


def test_what_was_seen_survives_a_kill(tmp_path: Path) -> None:
    code = f"""
import os, signal, time, torch
{SOFTMAX.format(rows=2)}
time.sleep(2 * {SETTINGS.profiling.write_every_s})
torch.ones(1).cos()
os.kill(os.getpid(), signal.SIGKILL)
"""
    profile = profiled_script(tmp_path, code)
    assert profile.exit_code == 128 + signal.SIGKILL
    assert problems(profile) == {"softmax:rows=2,cols=16,dtype=float32": 1}


def test_a_program_that_is_asked_to_end_ends(tmp_path: Path) -> None:
    code = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(60)
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tunedex",
            "profile",
            "--out",
            str(tmp_path / "p.json"),
            "--",
            sys.executable,
            str(script),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 7, done.stderr
