"""Who may import whom, read from the source of every module, and what importing a room loads."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import tunedex

PACKAGE = Path(tunedex.__file__).parent

#: What each room may import of ours; ``face`` is `tunedex` itself. The face and the command line may import every
#: room, but only inside functions, so that nothing is loaded before it is needed.
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "kernels": {"core"},
    "client": {"core"},
    "db": {"core"},
    "interop": {"core", "db"},
    "api": {"core", "db", "interop"},
    "tuner": {"core", "kernels", "db", "interop"},
    "ops": {"core", "kernels", "client", "face"},
    "models": {"ops"},
    "face": {"core", "client", "db", "ops", "tuner"},
    "cli": {"core", "kernels", "client", "db", "interop", "api", "tuner", "ops", "models", "face"},
    "main": {"cli"},
}
LAZY = {"face": set[str](), "cli": {"core"}}

#: Packages that a room never imports, whether at once or later.
NEVER: dict[str, set[str]] = {
    "api": {"torch", "triton", "optuna", "numba"},
    "db": {"torch", "triton", "optuna", "numba"},
    "client": {"torch", "triton", "sqlalchemy", "fastapi", "optuna", "numpy"},
    "interop": {"torch", "triton", "optuna", "numba"},
}

HEAVY = ("torch", "triton", "sqlalchemy", "fastapi", "optuna", "httpx", "numba", "numpy")


@dataclass(frozen=True)
class Import:
    """``name`` as imported by ``module``; ``at_once`` says that importing the module imports it."""

    module: str
    room: str
    name: str
    at_once: bool
    line: int

    @property
    def target(self) -> str | None:
        """The room of ours that is imported; None for somebody else's package."""
        parts = self.name.split(".")
        if parts[0] != "tunedex":
            return None
        return parts[1] if len(parts) > 1 and _is_room(parts[1]) else "face"

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.name}"


def _is_room(name: str) -> bool:
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


def _room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    if len(parts) > 1:
        return parts[0]
    return {"__init__.py": "face", "__main__.py": "main"}.get(parts[0], path.stem)


def _imports(path: Path) -> Iterator[Import]:
    module, room = str(path.relative_to(PACKAGE.parent)), _room(path)

    def walk(node: ast.AST, at_once: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, room, alias.name, at_once, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: imports are absolute"
            for alias in node.names:
                yield Import(module, room, f"{node.module}.{alias.name}", at_once, node.lineno)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for child in node.body:
                yield from walk(child, False)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                yield from walk(child, at_once and not inside)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), True)


EVERY = [found for path in sorted(PACKAGE.rglob("*.py")) for found in _imports(path)]


def test_every_module_is_read() -> None:
    assert {found.room for found in EVERY} >= {"core", "kernels", "client", "db", "api", "tuner", "ops", "cli", "face"}
    assert len(EVERY) > 300


def test_rooms_import_only_what_they_may() -> None:
    wrong = [
        str(found)
        for found in EVERY
        if (target := found.target) and target != found.room and target not in MAY_IMPORT[found.room]
    ]
    assert wrong == []


def test_the_face_and_the_command_line_import_rooms_late() -> None:
    wrong = [
        str(found)
        for found in EVERY
        if found.room in LAZY
        and found.at_once
        and (target := found.target)
        and target not in {found.room, *LAZY[found.room]}
    ]
    assert wrong == []


def test_core_needs_no_package_and_the_client_only_httpx() -> None:
    known = {"tunedex", *sys.stdlib_module_names}
    others = [f for f in EVERY if f.room in ("core", "client") and f.name.split(".")[0] not in known]
    assert [str(f) for f in others if f.room == "core"] == []
    assert {f.name for f in others} == {"httpx"}
    assert not any(f.at_once for f in others)


def test_packages_that_a_room_never_imports() -> None:
    assert [str(f) for f in EVERY if f.name.split(".")[0] in NEVER.get(f.room, ())] == []


def test_nothing_prints() -> None:
    calls = [
        f"{path.relative_to(PACKAGE.parent)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "eval", "exec")
    ]
    assert calls == []


def _loaded_by(code: str) -> set[str]:
    """The heavy packages that a fresh process has loaded after ``code``."""
    report = f"import json, sys; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, timeout=120, check=True
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "code",
    [
        "import tunedex",
        "import tunedex.client",
        "import tunedex.core",
        "import tunedex.cli",
        "import tunedex.db.records",
    ],
)
def test_importing_these_loads_nothing_heavy(code: str) -> None:
    assert _loaded_by(code) == set()


def test_a_lookup_without_a_source_loads_nothing_heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TUNEDEX_URL", "TUNEDEX_DB", "TUNEDEX_PIN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert _loaded_by("import tunedex; tunedex.lookup('softmax', 4, 4, dtype='float32')") == set()


def test_kernels_are_known_without_torch_and_triton() -> None:
    absent = "import sys; sys.modules.update(dict.fromkeys(['torch', 'triton', 'numba', 'numpy', 'cuda'], None))"
    code = f"{absent}\nfrom tunedex.kernels import all_kernels; assert len(all_kernels()) >= 3"
    assert _loaded_by(f"{code}\nfor name in ['torch', 'triton', 'numba', 'numpy']: del sys.modules[name]") == set()


def test_the_server_loads_neither_torch_nor_optuna() -> None:
    assert _loaded_by("import tunedex.api") <= {"sqlalchemy", "fastapi", "httpx"}


def test_the_database_loads_neither_torch_nor_optuna() -> None:
    assert _loaded_by("from tunedex.db import *") == {"sqlalchemy"}


def test_a_measuring_process_loads_no_database() -> None:
    """It starts often, and nothing is measured meanwhile."""
    assert "sqlalchemy" not in _loaded_by("import tunedex.tuner.bench")


def test_files_fit_a_few_screens() -> None:
    """Kernels apart, whose files hold an operation whole."""
    longest = 400
    lines = {
        str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8").count("\n")
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] != "kernels"
    }
    assert {name: count for name, count in lines.items() if count > longest} == {}
