"""What a program runs, recognised: on which problems, how often, and what is no problem of any kernel."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from tunedex.core.errors import BadInput, UnknownKernel
from tunedex.core.host import cpu
from tunedex.kernels.base import Kernel
from tunedex.kernels.patterns import Call, Pattern
from tunedex.kernels.registry import all_kernels, builtin_kernels
from tunedex.kernels.tensors import arranged
from tunedex.tuner.problem_file import read_problems
from tunedex.tuner.profiling.patterns import patterns_of
from tunedex.tuner.profiling.profile import Profile, profile_of
from tunedex.tuner.profiling.program import Recording, record
from tunedex.tuner.profiling.recorder import Recorder, _Watch
from tunedex.tuner.profiling.remembered import Remembered
from tunedex.tuner.settings import SETTINGS

X = torch.randn(2, 8, 16)
WEIGHT, BIAS = torch.randn(24, 16), torch.randn(24)
SCALE, SHIFT = torch.randn(16), torch.randn(16)


def profiled(folder: Path, program: Callable[[], object], **changes: int) -> Profile:
    """``program`` as it is seen when it runs here, under a recorder with ``changes`` to its settings."""
    patterns = tuple((kernel, pattern) for kernel in all_kernels().values() for pattern in patterns_of(kernel))
    plan = {"patterns": [asdict(pattern) for _, pattern in patterns], **asdict(SETTINGS.profiling), **changes}
    recorder = Recorder(folder, plan)
    with _Watch(recorder):
        program()
    document = json.loads(json.dumps(recorder.document()))
    assert not document["error"]
    return profile_of(Recording(0, 1.0, (document,), patterns))


def problems(profile: Profile) -> dict[str, int]:
    """The calls by problem."""
    return {str(hot.problem): hot.calls for hot in profile.problems}


def looked_up(kernel: str, operands: Mapping[str, torch.Tensor], **attributes: str) -> str:
    """The problem that `tunedex.ops` asks for with these very tensors."""
    return str(builtin_kernels()[kernel].problem_of(arranged(kernel, operands), attributes))


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, form: str = "none") -> torch.Tensor:
    return functional.gelu(functional.linear(x, weight, bias), approximate=form)


def norm(x: torch.Tensor, residual: torch.Tensor, form: str = "none") -> torch.Tensor:
    weight, bias = SCALE.to(x.dtype), SHIFT.to(x.dtype)
    return functional.gelu(functional.layer_norm(x, x.shape[-1:], weight, bias), approximate=form) + residual


def shifted(shape: Sequence[int]) -> torch.Tensor:
    """A tensor that begins 4 bytes after an aligned address."""
    count = torch.Size(shape).numel()
    return torch.randn(count + 1)[1:].view(*shape)


@pytest.mark.parametrize(
    "x",
    [
        X,
        X[0],
        X[0, :1],
        torch.randn(2, 3, 4, 16),
        torch.randn(2, 8, 32)[..., :16],
        torch.randn(4, 8, 16)[::2],
        X.bfloat16(),
        shifted((2, 8, 16)),
    ],
    ids=["batch", "rows", "row", "four dimensions", "strided", "every other item", "bfloat16", "unaligned"],
)
def test_a_problem_is_the_one_that_a_call_would_look_up(x: torch.Tensor, tmp_path: Path) -> None:
    weight, bias = torch.nn.Parameter(WEIGHT.to(x.dtype)), BIAS.to(x.dtype)
    scale, shift = SCALE.to(x.dtype), SHIFT.to(x.dtype)

    @torch.no_grad()
    def program() -> None:
        linear(x, weight, bias, "tanh")
        functional.gelu(functional.layer_norm(x, x.shape[-1:], scale, shift)) + x
        torch.softmax(x, -1)

    assert problems(profiled(tmp_path, program)) == {
        looked_up("linear_gelu", {"x": x, "weight": weight, "bias": bias}, gelu="tanh"): 1,
        looked_up("layernorm_gelu_residual", {"x": x, "weight": scale, "bias": shift, "residual": x}, gelu="erf"): 1,
        looked_up("softmax", {"x": x}): 1,
    }


def _inplace() -> None:
    functional.gelu(functional.layer_norm(X, (16,), SCALE, SHIFT)).add_(X)


def _onto_the_residual() -> None:
    residual = torch.randn(2, 8, 16)
    residual += functional.gelu(functional.layer_norm(X, (16,), SCALE, SHIFT))


def _other_work_between() -> None:
    h = functional.layer_norm(X, (16,), SCALE, SHIFT)
    other = X.cos()
    functional.gelu(h) + other


def _inference() -> None:
    with torch.inference_mode():
        norm(X, X)


def _alive_no_more() -> None:
    norm(torch.randn(2, 8, 16), torch.randn(2, 8, 16))


@pytest.mark.parametrize("program", [_inplace, _onto_the_residual, _other_work_between, _inference, _alive_no_more])
def test_a_norm_is_found_however_it_is_written(program: Callable[[], None], tmp_path: Path) -> None:
    assert problems(profiled(tmp_path, program)) == {
        "layernorm_gelu_residual:batch=2,rows=8,cols=16,gelu=erf,dtype=float32": 1
    }


def test_a_linear_layer_is_found_in_every_mode(tmp_path: Path) -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.GELU())

    def program() -> None:
        layer(X)
        layer(X).sum().backward()
        with torch.no_grad():
            layer(X)
        with torch.inference_mode():
            layer(X)
            linear(X, WEIGHT, BIAS)
        with torch.no_grad():
            layer(X.transpose(0, 1))  # no view of it is flat, so it is a copy, a product and a sum
            with torch.autocast("cpu"):
                layer(X)

    profile = profiled(tmp_path, program)
    assert problems(profile) == {
        "linear_gelu:batch=2,m=8,n=24,k=16,gelu=erf,dtype=float32": 5,
        "linear_gelu:batch=8,m=2,n=24,k=16,gelu=erf,dtype=float32": 1,
        "linear_gelu:batch=2,m=8,n=24,k=16,gelu=erf,dtype=bfloat16": 1,
    }
    assert sum(hot.gradient_calls for hot in profile.problems) == 2
    assert "2 calls want a gradient; tunedex.ops leaves such calls to torch" in profile.notes


def _read_twice() -> None:
    h = functional.linear(X, WEIGHT, BIAS)
    functional.gelu(h) + h


def _read_before() -> None:
    h = functional.linear(X, WEIGHT, BIAS)
    h.sum()
    functional.gelu(h)


def _read_by_two_of_a_kind() -> None:
    h = functional.linear(X, WEIGHT, BIAS)
    functional.gelu(h), functional.gelu(h)


def _changed_between() -> None:
    h = functional.linear(X, WEIGHT, BIAS)
    h[0, 0, 0] = 1.0
    functional.gelu(h)


def _a_part() -> None:
    functional.gelu(functional.linear(X, WEIGHT, BIAS)[:1])


def _another_order() -> None:
    functional.gelu(functional.linear(X[0, :].repeat(3, 1), WEIGHT, BIAS).t())


def _not_by_data_flow() -> None:
    functional.linear(X, WEIGHT, BIAS)
    functional.gelu(torch.randn(2, 8, 24))


@pytest.mark.parametrize(
    "program",
    [
        _read_twice,
        _read_before,
        _read_by_two_of_a_kind,
        _changed_between,
        _a_part,
        _another_order,
        _not_by_data_flow,
        lambda: functional.gelu(functional.linear(X, WEIGHT)),
        lambda: functional.relu(functional.linear(X, WEIGHT, BIAS)),
        lambda: functional.gelu(torch.addmm(BIAS, X[0], WEIGHT.t(), alpha=2)),
        lambda: functional.gelu(torch.addmm(torch.randn(8, 24), X[0], WEIGHT.t())),
        lambda: norm(X, X[0]),
        lambda: norm(X[:1], X),
        lambda: norm(X, SCALE),
        lambda: torch.add(functional.gelu(functional.layer_norm(X, (16,), SCALE, SHIFT)), X, alpha=2),
        lambda: functional.gelu(functional.layer_norm(X, (16,))) + X,
        lambda: functional.gelu(functional.layer_norm(X, (8, 16), torch.randn(8, 16), torch.randn(8, 16))) + X,
        lambda: torch.softmax(X, 1),
        lambda: torch.softmax(X.double(), -1),
        lambda: torch.log_softmax(X, -1),
        lambda: torch.softmax(X[:, :0], -1),
    ],
)
def test_what_a_kernel_would_not_compute_is_no_problem(program: Callable[[], object], tmp_path: Path) -> None:
    with torch.no_grad():
        profile = profiled(tmp_path, program)
    assert profile.problems == ()
    assert profile.operators


def test_attention_without_a_fused_kernel_has_its_softmax_seen(tmp_path: Path) -> None:
    q = torch.randn(2, 4, 8, 16)
    profile = profiled(tmp_path, lambda: torch.softmax(q @ q.transpose(-1, -2), -1) @ q)
    assert problems(profile) == {looked_up("softmax", {"x": q @ q.transpose(-1, -2)}): 1}


def test_shares_are_of_the_time_and_what_is_covered_is_not_listed(tmp_path: Path) -> None:
    def program() -> None:
        for _ in range(3):
            torch.softmax(X, -1)
            X.cos()

    profile = profiled(tmp_path, program)
    (hot,) = profile.problems
    assert hot.calls == 3
    assert [(each.operator, each.calls) for each in profile.operators] == [("aten::cos", 3)]
    parts = hot.total_ms + profile.operators[0].total_ms
    assert parts == pytest.approx(profile.torch_s * 1e3)
    assert profile.share(parts) == pytest.approx(1)
    assert profile.device == cpu()


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    def program() -> None:
        for rows in range(1, 40):
            functional.layer_norm(torch.randn(rows, 16), (16,), SCALE, SHIFT)

    profile = profiled(tmp_path, program, kinds=9, values=2)
    assert sum(each.calls for each in profile.operators) == 78
    assert len(profile.operators) == 10


def test_a_kernel_of_another_package_brings_its_pattern(
    planted: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    double = Call("aten::mul.Tensor", operands={"x": "self"}, where={"other": 2})
    monkeypatch.setattr(type(planted), "patterns", (Pattern(((double,),)),))
    profile = profiled(tmp_path, lambda: (X * 2, X * 3, 2 * X, torch.softmax(X, -1)))
    assert problems(profile) == {
        "planted:batch=2,rows=8,cols=16,dtype=float32": 2,
        "softmax:batch=2,rows=8,cols=16,dtype=float32": 1,
    }


def test_of_two_kernels_the_longer_chain_has_the_operators(
    planted: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = Pattern(((Call("aten::gelu", operands={"x": "self"}),),))
    monkeypatch.setattr(type(planted), "patterns", (alone,))
    profile = profiled(tmp_path, lambda: (linear(X, WEIGHT, BIAS), functional.gelu(X), norm(X, X)))
    assert problems(profile) == {
        "linear_gelu:batch=2,m=8,n=24,k=16,gelu=erf,dtype=float32": 1,
        "layernorm_gelu_residual:batch=2,rows=8,cols=16,gelu=erf,dtype=float32": 1,
        "planted:batch=2,rows=8,cols=16,dtype=float32": 1,
    }


def test_a_kernel_that_fails_on_what_was_seen_is_named(
    planted: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(planted), "patterns", (Pattern(((Call("aten::cos", operands={"x": "self"}),),)),))
    profile = profiled(tmp_path, lambda: (X[0].cos(), torch.softmax(X, -1)))  # it unpacks three dimensions
    assert any(note.startswith("planted fails on what was seen: ValueError") for note in profile.notes)
    assert len(profile.problems) == 1


def test_a_pattern_that_cannot_match_is_refused() -> None:
    with pytest.raises(ValueError, match="at least a step"):
        Pattern(())
    with pytest.raises(ValueError, match="aten::cos takes a value in step 0"):
        Pattern(((Call("aten::cos", value=("self",)),),))
    with pytest.raises(ValueError, match="aten::sin takes no value in step 1"):
        Pattern(((Call("aten::cos"),), (Call("aten::sin"),)))
    with pytest.raises(ValueError, match="has a rest"):
        Pattern(((Call("aten::cos"),), (Call("aten::sin", value=("self",), rest="x"),)))


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t[1:],
        lambda t: t[..., 3:],
        lambda t: t.view(-1, 16)[2],
        lambda t: t.transpose(0, 1),
        lambda t: t.reshape(16, 16),
    ],
)
def test_a_view_of_a_remembered_tensor_lies_where_the_tensor_s_does(
    view: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    real = shifted((2, 8, 16))
    remembered = Remembered(real.shape, real.stride(), real.dtype, "cpu", real.data_ptr())
    wanted, found = view(real), view(remembered)
    assert (found.shape, found.stride(), found.dtype) == (wanted.shape, wanted.stride(), wanted.dtype)
    assert found.data_ptr() == wanted.data_ptr()
    assert found.is_contiguous() == wanted.is_contiguous()


def test_a_copy_of_a_remembered_tensor_is_new_memory() -> None:
    remembered = Remembered((4, 6), (1, 4), torch.float32, "cpu", 4)
    assert (remembered.contiguous().stride(), remembered.contiguous().data_ptr()) == ((6, 1), 0)


# A program of its own, unchanged.

SOFTMAX = "torch.softmax(torch.randn({rows}, 16), -1)"


def run(tmp_path: Path, code: str, *options: str) -> Profile:
    script = tmp_path / "script.py"
    script.write_text(code)
    return profile_of(record([sys.executable, *options, str(script)], list(all_kernels().values())))


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
    profile = run(tmp_path, code)
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
    profile = run(tmp_path, code)
    assert profile.exit_code == 0
    assert problems(profile) == {f"softmax:rows={rows},cols=16,dtype=float32": 1 for rows in (2, 4)}
    assert any(note.startswith("1 graphs of torch.compile") for note in profile.notes)


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
    profile = run(tmp_path, code)
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
    profile = run(tmp_path, code)
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


# Problem files.

ENTRY = {"kernel": "softmax", "dims": {"rows": 4, "cols": 8}, "dtypes": {"x": "float32"}, "share": 0.2}


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
        ({**ENTRY, "dims": [4, 8]}, "dims is not a JSON object"),
        ({**ENTRY, "dims": {"rows": 4}}, "softmax needs cols"),
        ({**ENTRY, "dims": {"rows": 0, "cols": 8}}, "rows=0: nothing to compute"),
        ({**ENTRY, "dims": {"rows": [4], "cols": 8}}, "is not a whole number"),
        ({**ENTRY, "dtypes": {"x": "float33"}}, "dtype 'float33' is unknown"),
        ({**ENTRY, "dtypes": {}}, "softmax needs dtype"),
        ({**ENTRY, "attributes": {"gelu": "erf"}}, "softmax has no parameter 'gelu'"),
        ({**ENTRY, "layout": 3}, "layout is not a text"),
        ({**ENTRY, "layout": "diagonal"}, "layout 'diagonal' is unknown"),
        ({**ENTRY, "alignment": True}, "alignment is not a whole number"),
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
