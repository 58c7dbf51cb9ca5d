"""Which kernels there are, what each declares, and how another package adds one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunedex.cli.app import run
from tunedex.core import host
from tunedex.core.canonical import canonical_json
from tunedex.core.device import Device
from tunedex.core.errors import BadInput, CannotRun, UnknownKernel
from tunedex.core.signature import Signature
from tunedex.kernels.base import Kernel
from tunedex.kernels.registry import all_kernels, builtin_kernels, get_kernel

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "third_party_kernel"
DEVICES = (Device.from_key("nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"), host.cpu())


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path for packages that are only seen by one test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    all_kernels.cache_clear()
    yield tmp_path
    all_kernels.cache_clear()


def install(packages: Path, name: str, value: str, code: str = "") -> None:
    """What installing a package leaves behind: its entry point, and a module if ``code`` is given."""
    folder = packages / f"{name}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[tunedex.kernels]\n{name} = {value}\n")
    if code:
        (packages / f"{value.partition(':')[0]}.py").write_text(code)


def test_the_builtin_kernels() -> None:
    assert list(builtin_kernels()) == ["layernorm_gelu_residual", "softmax", "linear_gelu"]
    assert set(builtin_kernels()) <= set(all_kernels())


def test_an_unknown_kernel_is_told_with_those_that_are_known() -> None:
    with pytest.raises(UnknownKernel, match=r"kernel 'sofmax' is unknown; known are .*softmax") as caught:
        get_kernel("sofmax")
    assert caught.value.field == "kernel"


@pytest.mark.parametrize("name", ["layernorm_gelu_residual", "linear_gelu"])
def test_operands_of_different_dtypes_are_refused(name: str) -> None:
    signature = get_kernel(name).signature
    dims = {dimension.name: 8 for dimension in signature.dimensions}
    for operand in signature.operands[1:]:
        words = rf"^{name} needs x, .* in one dtype, not x in bfloat16 and {operand.name} in float32$"
        with pytest.raises(BadInput, match=words):
            signature.problem({**dims, "dtype": "bfloat16", f"{operand.name}_dtype": "float32"})
    each = {f"{operand.name}_dtype": "bfloat16" for operand in signature.operands}
    assert signature.problem({**dims, **each}) == signature.problem({**dims, "dtype": "bfloat16"})


@pytest.mark.parametrize("kernel", all_kernels().values(), ids=lambda kernel: kernel.name)
def test_a_kernel_says_of_each_dimension_of_the_card_whether_it_applies(kernel: Kernel) -> None:
    notes = kernel.dimensions_notes
    assert set(notes) == {"batch", "streams", "precision", "dtypes"}
    assert all(len(note.split()) > 3 for note in notes.values())


@pytest.mark.parametrize("name", ["layernorm_gelu_residual", "softmax", "linear_gelu"])
class TestEveryKernel:
    def test_its_signature_survives_json(self, name: str) -> None:
        signature = get_kernel(name).signature
        assert Signature.from_dict(json.loads(canonical_json(signature.to_dict()))) == signature

    def test_its_names(self, name: str) -> None:
        kernel = get_kernel(name)
        assert kernel.name == name
        assert kernel.signature.dimensions[0].name == "batch"
        assert kernel.signature.formula
        names = [implementation.name for implementation in kernel.implementations]
        assert len(set(names)) == len(names)
        assert "library" in names
        assert all(kernel.implementation(n).name == n for n in names)
        with pytest.raises(KeyError, match="has no implementation abacus"):
            kernel.implementation("abacus")

    @pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.kind)
    def test_its_quick_problems_are_problems(self, name: str, device: Device) -> None:
        kernel = get_kernel(name)
        presets = kernel.quick(device)
        assert presets
        for preset in presets:
            problem = kernel.signature.problem({n: v for n, v in preset.items() if n != "max_error"})
            assert not problem.empty
            assert kernel.cost(problem).bytes > 0
            assert kernel.reduction_length(problem) > 0
            assert kernel.signature.default(problem, device) is not None


def test_a_kernel_of_another_package(tmp_path: Path) -> None:
    """The example, installed by pip into a folder of its own, is found by its entry point and computes its formula."""
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(tmp_path))
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(EXAMPLE)], check=True, timeout=120)
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from tunedex.cli.app import run
from tunedex.core import host
from tunedex.kernels.base import InputSource
from tunedex.kernels.registry import all_kernels, get_kernel
from tunedex.tuner.space import Space

kernel = get_kernel("row_sum")
problem = kernel.signature.problem({"batch": 2, "rows": "3", "cols": 5, "dtype": "fp32"})
operands = kernel.operands(problem, InputSource(0, "cpu"))
assert kernel.problem_of(operands, {}) == problem
(config,) = Space.of(kernel, problem, host.cpu())
out = {"out": torch.full((2, 3), float("nan"))}
kernel.implementation(config.implementation).bind(problem, config, host.cpu())(operands, out)
torch.testing.assert_close(out["out"].double(), kernel.reference(problem, operands)["out"].value)
print(*all_kernels())
"""
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[-1] == "row_sum"


def test_the_example_compiles_for_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import rowsum_kernel

    kernel: Kernel = rowsum_kernel.KERNEL
    problem = kernel.signature.problem({"rows": 64, "cols": 1000, "dtype": "float32"})
    config = kernel.signature.default(problem, DEVICES[0])
    assert config is not None
    assert kernel.implementation("triton").compile(problem, config, DEVICES[0]).registers


def test_a_kernel_that_does_not_load_is_named(packages: Path) -> None:
    install(packages, "broken", "broken_kernel:KERNEL", "raise ValueError('half written')")
    with pytest.raises(CannotRun, match=r"kernel 'broken' of broken_kernel:KERNEL does not load: half written"):
        all_kernels()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("import sys; sys.exit('good\\nbye')", "SystemExit: good bye"),
        ("raise GeneratorExit", "GeneratorExit: "),
        ("class Odd(BaseException): ...\nraise Odd('odd')", "Odd: odd"),
        ("raise ValueError", "ValueError: "),
        (
            "from tunedex.kernels.softmax import Softmax\n"
            "class Bad(Softmax):\n    @property\n    def name(self): raise SystemExit(3)\nKERNEL = Bad()",
            "SystemExit: 3",
        ),
    ],
)
def test_a_module_that_ends_the_process_is_a_kernel_that_does_not_load(
    code: str, words: str, packages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(packages, "ends", "ends_kernel:KERNEL", code)
    try:
        for call in (all_kernels, lambda: get_kernel("row_sum")):
            with pytest.raises(CannotRun) as caught:
                call()
            assert str(caught.value) == f"kernel 'ends' of ends_kernel:KERNEL does not load: {words}"
        assert run(["kernels", "--device", "cpu", "--json"]) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err) == ("", f"tuner: {' '.join(str(caught.value).split())}\n")
    finally:
        sys.modules.pop("ends_kernel", None)


def test_an_interrupt_stays_one(packages: Path) -> None:
    install(packages, "ends", "interrupted_kernel:KERNEL", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        all_kernels()


def test_a_builtin_kernel_needs_no_other_package(packages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(packages, "marked", "marked_kernel:KERNEL", "import sys; sys.exit(0)")
    assert get_kernel("softmax") is builtin_kernels()["softmax"]
    assert "marked_kernel" not in sys.modules
    assert run(["sweep", "--device", "cpu", "--kernels", "softmax", "--problem", "softmax:rows=4"]) == 2
    assert "softmax needs cols" in capsys.readouterr().err


def test_a_kernel_of_another_package_is_found_beside_one_that_does_not_load(
    packages: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install(packages, "halfway", "halfway_kernel:KERNEL", "raise ValueError('half written')")
    install(packages, "twice", "twice_kernel:KERNEL", "from tunedex.kernels.softmax import KERNEL")
    install(packages, "other", "other_kernel:KERNEL", OTHER)
    for _ in range(2):
        assert get_kernel("other").name == "other"
    assert sorted(record.getMessage() for record in caplog.records) == [
        "kernel 'halfway' of halfway_kernel:KERNEL does not load: half written",
        "kernel 'twice' of twice_kernel:KERNEL takes the name 'softmax', which is taken",
    ]
    with pytest.raises(CannotRun):
        all_kernels()
    with pytest.raises(CannotRun):
        get_kernel("nosuch")


OTHER = """
import dataclasses
from tunedex.kernels.softmax import Softmax
class Other(Softmax):
    signature = dataclasses.replace(Softmax.signature, kernel="other")
print("hello from", __name__)
KERNEL = Other()
"""


def test_what_a_module_prints_while_it_is_imported_is_not_on_standard_output(
    packages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(packages, "talks", "talking_kernel:KERNEL", OTHER)
    assert run(["kernels", "--device", "cpu", "--json"]) == 0
    printed = capsys.readouterr()
    assert "other" in {kernel["kernel"] for kernel in json.loads(printed.out)["kernels"]}
    assert printed.err == "hello from talking_kernel\n"


def test_a_kernel_whose_module_is_gone_is_named(packages: Path) -> None:
    install(packages, "gone", "gone_kernel:KERNEL")
    with pytest.raises(CannotRun, match=r"kernel 'gone'.*No module named 'gone_kernel'"):
        all_kernels()


def test_what_is_no_kernel_is_refused(packages: Path) -> None:
    install(packages, "text", "text_kernel:KERNEL", "KERNEL = 'softmax'")
    with pytest.raises(CannotRun, match=r"text_kernel:KERNEL is not an instance of tunedex\.kernels\.base\.Kernel"):
        all_kernels()


def test_a_taken_name_is_refused(packages: Path) -> None:
    install(packages, "again", "again_kernel:KERNEL", "from tunedex.kernels.softmax import KERNEL")
    with pytest.raises(CannotRun, match="takes the name 'softmax', which is taken"):
        all_kernels()
