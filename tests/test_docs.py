"""The documents say what is true: every command, option, target, link, name and setting in them exists."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import typer.main

from tunedex.cli.app import app
from tunedex.core.device import Device

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
SHELL = {"console", "bash", "sh"}
PROGRAMS = (["tuner"], ["python", "-m", "tunedex"], [".venv/bin/tuner"], [".venv/bin/python", "-m", "tunedex"])
SETTING = re.compile(r"\bTUNEDEX_[A-Z][A-Z_]*[A-Z]\b")
TEXT = {
    ".py",
    ".md",
    ".toml",
    ".yaml",
    ".yml",
    ".txt",
    ".html",
    ".css",
    ".js",
    ".cu",
    ".cuh",
    ".json",
    ".mako",
    ".example",
}
FOLDERS = ("tunedex", "alembic", "docs", "docker", "examples", "tests", "benchmarks", ".ci")

page = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())


def blocks(path: Path, *languages: str) -> Iterator[str]:
    return (text for language, text in FENCE.findall(path.read_text()) if language in languages)


def shell_commands(path: Path) -> Iterator[list[str]]:
    """The words of every command in a page's shell blocks, without comments, prompts, pipes and redirections."""
    for block in blocks(path, *SHELL):
        for line in block.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|&;<>")
            lexer.whitespace_split = True
            words: list[str] = []
            for word in [*lexer, ";"]:
                if set(word) <= set("|&;<>"):
                    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                        words.pop(0)
                    if words:
                        yield words
                    words = []
                else:
                    words.append(word)


def spoken_commands(path: Path) -> Iterator[list[str]]:
    """The words of every `tuner ...` in running text; a placeholder or an ellipsis is a word like any other."""
    prose = FENCE.sub("", path.read_text())
    return (text.split() for text in re.findall(r"`(tuner [^`]+)`", prose))


def arguments_of(words: list[str]) -> list[str] | None:
    program = next((program for program in PROGRAMS if words[: len(program)] == program), None)
    return words[len(program) :] if program else None


def leaf(arguments: list[str]) -> tuple[Any, str, list[str]]:
    """The command that ``arguments`` name, its full name, and the arguments left for it."""
    command: Any = typer.main.get_command(app)
    name = "tuner"
    while getattr(command, "commands", None) and arguments and arguments[0] in command.commands:
        command, name = command.commands[arguments[0]], f"{name} {arguments[0]}"
        arguments = arguments[1:]
    return command, name, arguments


def leaves(command: Any, name: str = "tuner") -> Iterator[str]:
    children = getattr(command, "commands", None)
    if not children:
        yield name
    for child, inner in (children or {}).items():
        yield from leaves(inner, f"{name} {child}")


@page
def test_every_shown_command_parses(path: Path) -> None:
    for words in shell_commands(path):
        arguments = arguments_of(words)
        if arguments is not None:
            command, name, rest = leaf(arguments)
            assert not getattr(command, "commands", None), f"{path.name}: `{shlex.join(words)}` names no command"
            command.make_context(name, rest)  # raises where an option, an argument or a value is wrong


@page
def test_every_command_in_the_text_exists(path: Path) -> None:
    for words in spoken_commands(path):
        command, name, rest = leaf(words[1:])
        if name == "tuner":
            assert set(rest) <= {"...", "COMMAND"}, f"{path.name}: `{' '.join(words)}` names no command"
        options = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
        given = {word.strip("[]").split("=")[0] for word in rest if word.strip("[").startswith("--")}
        assert given <= options | {"--help"}, f"{path.name}: {name} has no {sorted(given - options)}"


def test_every_command_is_in_the_readme() -> None:
    shown = re.findall(r"`(tuner [^`]+)`", (ROOT / "README.md").read_text())
    names = {leaf(text.split()[1:])[1] for text in shown}
    assert names >= set(leaves(typer.main.get_command(app)))


@page
def test_every_make_target_exists(path: Path) -> None:
    targets = set(re.findall(r"^([\w.-]+):(?!=)", (ROOT / "Makefile").read_text(), re.M))
    shown = {words[1] for words in shell_commands(path) if words[0] == "make" and len(words) > 1}
    shown |= {text.split()[0] for text in re.findall(r"`make ([^`]+)`", FENCE.sub("", path.read_text()))}
    assert {target for target in shown if "=" not in target} <= targets


@page
def test_every_link_to_a_file_resolves(path: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", path.read_text()))
    local = [link.split("#") for link in links if not re.match(r"\w+:", link)]
    for target, *anchor in local:
        file = path.parent / target if target else path
        assert file.exists(), f"{path.name} links to {target}"
        if anchor:
            assert anchor[0] in anchors(file), f"{path.name} links to {target}#{anchor[0]}"


def anchors(path: Path) -> set[str]:
    """The anchors that a page's headings get: lower case, words joined by hyphens, no punctuation."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@page
def test_every_file_named_exists(path: Path) -> None:
    named = re.findall(r"`((?:tunedex|tests|docs|docker|examples|benchmarks|alembic)/[\w./-]+)`", path.read_text())
    built = {"tunedex/db/migrations"}  # where the wheel puts alembic/
    missing = {name for name in named if name not in built and not (ROOT / name).exists()}
    assert not missing


@page
def test_python_shown_uses_names_that_exist(path: Path) -> None:
    for block in blocks(path, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tunedex"):
                module = importlib.import_module(node.module or "")
                assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)
            elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("tunedex."):
                value: Any = importlib.import_module("tunedex")
                for name in ast.unparse(node).split(".")[1:]:
                    value = getattr(value, name)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a `tuner serve` on an empty database."""
    database = tmp_path_factory.mktemp("docs") / "tunedex.db"
    command = [sys.executable, "-m", "tunedex", "serve", "--port", "0", "--db", str(database)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            match = re.search(r"http://[\d.:]+", line)
            assert match, line
            yield match[0]
        finally:
            process.terminate()
            process.communicate(timeout=60)


@page
def test_every_address_shown_answers(path: Path, server: str) -> None:
    shown = [word for words in shell_commands(path) if words[0] == "curl" for word in words if "://" in word]
    for url in shown:
        asked = url.replace("http://127.0.0.1:8421", server).replace("DEVICE_KEY", "cpu-example-2c-avx2")
        reply = httpx.get(asked, timeout=60)
        assert reply.status_code == 200, f"{path.name}: {url}: {reply.text}"


@page
def test_python_shown_runs(path: Path, server: str, tmp_path: Path) -> None:
    """As it stands, but for the server's address and, where there is no GPU, the device."""
    for block in blocks(path, "python"):
        code = block.replace("http://127.0.0.1:8421", server)
        if not torch.cuda.is_available():
            code = code.replace('device="cuda"', 'device="cpu"')
        settings = {"TUNEDEX_URL": server, "TUNEDEX_CACHE_DIR": str(tmp_path), "PYTHONWARNINGS": "error::UserWarning"}
        result = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert (result.returncode, result.stderr) == (0, ""), block


def test_every_setting_is_documented_once_and_is_real() -> None:
    code = [path.read_text() for path in (ROOT / "tunedex").rglob("*.py")]
    used = {name for text in code for name in SETTING.findall(text)}
    rows = re.findall(r"^\| `(TUNEDEX_\w+)` \|", (ROOT / "README.md").read_text(), re.M)
    assert sorted(rows) == sorted(used)


def test_device_keys_shown_are_device_keys() -> None:
    shown = {
        match
        for path in PAGES
        for match in re.findall(r"\b(?:nvidia-sm\d[\w.+-]+|cpu-\w+-\d+c-\w+|name:[A-Z]\w+)", path.read_text())
    }
    assert len(shown) >= 4
    for key in shown:
        assert Device.from_key(key.rstrip(".")).key == key.rstrip(".")


def test_nothing_names_a_machine_or_a_registry() -> None:
    # Put together here, so that this file does not hold what it looks for.
    words = [
        "/" + "work/",
        "/" + "root/",
        "pypi" + ".org",
        "pythonhosted" + ".org",
        "registry." + "npmjs",
        "/opt/" + "pypi",
    ]
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    files += [path for path in ROOT.iterdir() if path.is_file() and path.suffix in {*TEXT, ""}]
    read = [path for path in files if path.suffix in {*TEXT, ""} and "__pycache__" not in path.parts]
    assert len(read) > 50
    found = [(path.name, word) for path in read for word in words if word in path.read_text(errors="replace")]
    assert not found
