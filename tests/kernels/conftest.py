"""Triton's interpreter, which is chosen before Triton is imported and therefore runs in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def interpret() -> Callable[..., Any]:
    """Run a script of this folder under the interpreter, on a JSON document, and give the one that it prints."""

    def run(script: str, document: Any, *, timeout_s: float = 240) -> Any:
        result = subprocess.run(
            [sys.executable, str(Path(__file__).with_name(script))],
            input=json.dumps(document),
            env={**os.environ, "TRITON_INTERPRET": "1"},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return run


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest, interpret: Callable[..., Any]) -> dict[str, dict[str, Any]]:
    """What the interpreter gives for every one of the module's ``CASES``, by the case's id."""
    cases = request.module.CASES
    found = interpret("interpreted_cases.py", [case.values[0] for case in cases])
    return dict(zip((str(case.id) for case in cases), found, strict=True))


@pytest.fixture
def verdict(request: pytest.FixtureRequest, verdicts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The verdict on the case of the test that asks."""
    return verdicts[request.node.callspec.id]


@pytest.fixture(scope="session")
def accept() -> Callable[[dict[str, Any], dict[str, Any]], None]:
    """Assert that the interpreter's result of a case is right."""

    def check(case: dict[str, Any], verdict: dict[str, Any]) -> None:
        if case["parameters"]["dtype"] == "bfloat16":
            # The interpreter truncates where the device rounds.
            assert verdict["error"] <= 2.5 * verdict["eager_error"]
        else:
            assert verdict["accepted"], verdict["detail"]

    return check
