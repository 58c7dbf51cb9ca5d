"""What changes a kernel's version, and what does not."""

from __future__ import annotations

import ast
import subprocess
from importlib import import_module
from pathlib import Path

import pytest
from test_catalog import interpreters

from tunedex.kernels.registry import builtin_kernels
from tunedex.kernels.version import VERSION_HEX_DIGITS, cuda_tokens, python_tokens, version_of

ROOT = Path(__file__).parents[2]

PLAIN = '''def f(x, y=2):
    """Add."""
    if x:
        return f"{x!r:>{y}} and {{braces}} {f'{y}'}"
    return x + y
'''


def version(tmp_path: Path, text: str, name: str = "kernel.py") -> str:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return version_of(path)


@pytest.mark.parametrize(
    "same",
    [
        PLAIN.replace("    return x + y", "    # the sum\n\n    return x + y  # of both"),
        PLAIN.replace("    ", "  "),
        PLAIN.replace("    ", "\t"),
        PLAIN.replace("x + y", "x  +   y"),
        PLAIN.replace("(x, y=2)", "(\n        x,\n        y=2)"),
        PLAIN.replace("\n", "\r\n"),
        "\n\n" + PLAIN + "\n\n# the end\n",
        PLAIN.rstrip("\n"),
    ],
    ids=["comments", "indentation", "tabs", "spaces", "line breaks", "line ends", "blank lines", "no last line end"],
)
def test_layout_does_not_count(tmp_path: Path, same: str) -> None:
    assert version(tmp_path, same) == version(tmp_path, PLAIN)


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.replace("y=2", "y=3"),
        PLAIN.replace("x + y", "x - y"),
        PLAIN.replace("    return x + y", "        return x + y"),
        PLAIN.replace(" and ", "  and "),
        PLAIN.replace("!r", "!s"),
        PLAIN.replace("{f'{y}'}", "{f'{x}'}"),
        PLAIN.replace("x + y", "x + 'y'"),
    ],
    ids=["number", "operator", "block", "f-string text", "conversion", "nested f-string", "string"],
)
def test_code_counts(tmp_path: Path, other: str) -> None:
    assert version(tmp_path, other) != version(tmp_path, PLAIN)


def test_its_form(tmp_path: Path) -> None:
    found = version(tmp_path, PLAIN)
    assert len(found) == VERSION_HEX_DIGITS
    assert set(found) <= set("0123456789abcdef")


def test_f_strings_are_one_token_of_source() -> None:
    assert list(python_tokens("a = f'x{b}' + rf'''{c}\n{d}'''\n")) == [
        "a",
        "=",
        "f'x{b}'",
        "+",
        "rf'''{c}\n{d}'''",
        "newline",
    ]


@pytest.mark.skipif(not interpreters(), reason="no other Python is installed beside this one")
@pytest.mark.parametrize("python", interpreters(), ids=lambda path: path.parents[1].name)
def test_every_python_agrees(tmp_path: Path, python: Path) -> None:
    expected = version(tmp_path, PLAIN)
    code = "import sys; from tunedex.kernels.version import version_of; print(version_of(sys.argv[1]))"
    command = [str(python), "-S", "-c", code, str(tmp_path / "kernel.py")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == expected


def test_cuda_is_read_without_comments_and_layout(tmp_path: Path) -> None:
    plain = 'int f(int x) { return g(x, "a // b /* c */ \\" d", \'"\'); }'
    spaced = plain.replace("{ ", "{ // open\n  ").replace("; }", "; /* close\n */\n}\n")
    assert version(tmp_path, spaced, "k.cu") == version(tmp_path, plain, "k.cu")
    for other in (plain.replace("//", "/ /"), plain.replace("g(x", "h(x"), plain.replace("int x", "long x")):
        assert version(tmp_path, other, "k.cu") != version(tmp_path, plain, "k.cu")


def test_cuda_words() -> None:
    assert list(cuda_tokens("a/* x */b // c\nd")) == ["a", "b", "d"]
    assert list(cuda_tokens("/* never closed")) == []
    assert list(cuda_tokens("last // line")) == ["last"]


def test_files_count_in_their_order(tmp_path: Path) -> None:
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text("a = 1\n")
    two.write_text("b = 2\n")
    assert version_of(one, two) != version_of(two, one)
    assert version_of(one, two) != version_of(one)
    both = tmp_path / "both.py"
    both.write_text("a = 1\nb = 2\n")
    assert version_of(one, two) != version_of(both)


#: What kernels import of Tunedex and what no result or time hangs on: declarations, limits, and what compiles ahead.
NOT_RUN = {"base.py", "jit.py", "offline.py", "version.py"}
#: Of `rows.py` the product takes how its inputs are laid out, which its problem says.
NOT_RUN_BY = {"linear_gelu": {"rows.py"}}


def imported(path: Path, skipped: set[str]) -> set[str]:
    """The files of `tunedex.kernels` that ``path`` imports, and what those import."""
    found = {path.name}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tunedex.kernels."):
            name = f"{(node.module or '').rpartition('.')[2]}.py"
            if name not in skipped | found:
                found |= imported(path.with_name(name), skipped)
    return found


@pytest.mark.parametrize("name", sorted(builtin_kernels()))
def test_it_is_of_every_file_that_runs(name: str) -> None:
    module = import_module(f"tunedex.kernels.{name}")
    listed = {path.name for path in module._CODE if path.suffix == ".py"}
    assert imported(Path(module.__file__ or ""), NOT_RUN | NOT_RUN_BY.get(name, set())) == listed
    assert builtin_kernels()[name].signature.version == version_of(*module._CODE)
