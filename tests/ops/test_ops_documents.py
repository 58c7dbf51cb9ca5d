"""Snapshots and databases of somebody else's hand: whatever stands in them, a call computes, and with a config of the
kernel's own space."""

from __future__ import annotations

import copy
import json
import logging
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ops_cases import CASES, LIBRARY, Case, accept, every_case, publish, running

import tunedex
from tunedex import ops
from tunedex.core import host
from tunedex.core.config import Config
from tunedex.core.snapshot import Match, Snapshot
from tunedex.db import open_store
from tunedex.kernels.registry import get_kernel

SOFTMAX = CASES[1]


def default_of(case: Case) -> Config:
    config = get_kernel(case.kernel).signature.default(case.problem(), host.cpu())
    assert config is not None
    assert config.implementation == "numba"
    return config


def document(folder: Path) -> dict[str, Any]:
    """A snapshot of this host with two rows, as a server sends it."""
    problem = SOFTMAX.problem()
    publish(folder / "mine.db", SOFTMAX, problem, default_of(SOFTMAX), LIBRARY["softmax"])
    with open_store(str(folder / "mine.db")) as store:
        found = store.snapshot(host.cpu().key)
    rows = [replace(row, default_us=30.0, library_us=40.0, warm_us=9.0) for row in found.rows[problem.key]]
    return json.loads(json.dumps(replace(found, rows={problem.key: rows}).to_dict()))


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


WRONG_VALUES: list[tuple[str, Any, str]] = [
    ("rows_per_task", -1, "rows_per_task=-1 is none of 1, 4"),
    ("rows_per_task", 2**62, "is none of"),
    ("rows_per_task", 1.5, "is none of"),
    ("rows_per_task", "4", "is none of"),
    ("rows_per_task", True, "is none of"),
    ("threads", 999, "threads=999 is none of 0, 1"),
    ("vector_bits", 7, "vector_bits=7 is none of 0"),
    ("exp_math", "nosuch", "exp_math=nosuch is none of exact, fitted"),
    ("exp_math", "exact", "go with exp_math=fitted"),
    ("colour", "blue", "colour is no tunable here"),
]


@pytest.mark.parametrize(("name", "value", "words"), WRONG_VALUES, ids=str)
def test_a_value_outside_the_space_gives_way_to_the_next_config_with_one_warning(
    name: str, value: Any, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    problem = SOFTMAX.problem()
    # Where rows are written past the caches only the fitted exponential goes.
    stores = {"stores": "streaming"} if value == "exact" else {}
    wrong = Config("numba", {**default_of(SOFTMAX).values, **stores, name: value})
    publish(tmp_path / "mine.db", SOFTMAX, problem, wrong, LIBRARY["softmax"])
    tunedex.connect(tmp_path / "mine.db", device="cpu")
    operands = SOFTMAX.tensors(problem)
    for _ in range(3):
        accept(SOFTMAX, problem, operands, ops.softmax(**operands))
    assert running() == [LIBRARY["softmax"]]
    (warned,) = warnings_of(caplog)
    assert f"does not run with {wrong}" in warned
    assert words in warned


@every_case
def test_a_config_that_lacks_a_tunable_gives_way(case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    values = dict(default_of(case).values)
    name, _ = values.popitem()
    publish(tmp_path / "mine.db", case, case.problem(), Config("numba", values))
    tunedex.connect(tmp_path / "mine.db", device="cpu")
    operands = case.tensors(case.problem())
    accept(case, case.problem(), operands, case.run(**operands))
    assert running() == [default_of(case)]
    (warned,) = warnings_of(caplog)
    assert f"{name} is missing here" in warned


def test_a_number_is_bound_as_the_space_spells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[Config] = []
    numba = get_kernel("softmax").implementation("numba")
    bind = numba.bind

    def seen(problem: Any, config: Config, device: Any) -> Any:
        bound.append(config)
        return bind(problem, config, device)

    monkeypatch.setattr(numba, "bind", seen, raising=False)
    for rows_per_task in (1.0, 4.0):  # that of the default, and another one
        given_so = Config("numba", {**default_of(SOFTMAX).values, "rows_per_task": rows_per_task, "threads": 0.0})
        publish(tmp_path / "mine.db", SOFTMAX, SOFTMAX.problem(), given_so)
        tunedex.connect(tmp_path / "mine.db", device="cpu")
        operands = SOFTMAX.tensors(SOFTMAX.problem())
        accept(SOFTMAX, SOFTMAX.problem(), operands, ops.softmax(**operands))
        assert running() == [given_so]
        assert [type(bound[-1].values[name]) for name in ("rows_per_task", "threads")] == [int, int]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document, the document's own first."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield from places(item, (*path, name))


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(max_size=3)
    | st.sampled_from(["0", "abc", "\ud800", "numba", "library", 10**400, -1, 0, 2**62]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_stands_in_a_snapshot_nothing_raises_and_the_result_is_right(
    data: st.DataObject, tmp_path: Path
) -> None:
    whole = tmp_path / "whole.json"
    if not whole.exists():
        whole.write_text(json.dumps(document(tmp_path)))
    changed = copy.deepcopy(json.loads(whole.read_text()))
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from([each for each in places(changed) if each]))
        holder = changed
        for step in path[:-1]:
            holder = holder[step]
        if isinstance(holder, dict) and data.draw(st.integers(0, 4)) == 0:
            holder[data.draw(st.sampled_from(["streams", "more", *map(str, holder)]))] = data.draw(ANYTHING)
        else:
            holder[path[-1]] = data.draw(ANYTHING)
    file = tmp_path / "changed.json"
    file.write_text(json.dumps(changed))
    ops._plans.clear()
    client = tunedex.connect(file, device="cpu")
    parameters = {"rows": 5, "cols": 70, "dtype": "float32"}
    for objective in ("latency", "error", "memory"):
        assert tunedex.lookup("softmax", batch=2, **parameters, objective=objective).config is not None
    for objective in ("latency", "throughput"):
        assert tunedex.recommend("softmax", **parameters, objective=objective).answer.config is not None
    client.candidates(SOFTMAX.problem())
    client.status()
    operands = SOFTMAX.tensors(SOFTMAX.problem())
    accept(SOFTMAX, SOFTMAX.problem(), operands, ops.softmax(**operands))


def test_the_document_that_is_changed_is_answered_from(tmp_path: Path) -> None:
    """Unchanged, it gives the row that it holds; else the test above would test the defaults alone."""
    file = tmp_path / "whole.json"
    file.write_text(json.dumps(document(tmp_path)))
    assert Snapshot.from_dict(json.loads(file.read_text())).rows
    answer = tunedex.connect(file, device="cpu").answer(SOFTMAX.problem())
    assert (answer.match, answer.speedup) == (Match.EXACT, 3.0)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("time_us", "abc"),
        ("time_us", -1.0),
        ("default_us", "abc"),
        ("error", "x"),
        ("samples", "many"),
        ("config", '{"implementation":"numba","rows_per_task":NaN}'),
        ("config", '{"implementation":"numba","streams":"two"}'),
        ("config", "[]"),
        ("kernel_version", b"\xff"),
    ],
)
def test_whatever_stands_in_a_database_nothing_raises(column: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    publish(path, SOFTMAX, SOFTMAX.problem(), LIBRARY["softmax"])
    with sqlite3.connect(path) as database:
        assert database.execute(f"update tunedex_bests set {column} = ?", (value,)).rowcount == 1
    database.close()
    tunedex.connect(path, device="cpu")
    x = torch.randn(2, 5, 70)
    torch.testing.assert_close(ops.softmax(x), torch.softmax(x, -1))
    assert running() == [default_of(SOFTMAX)]
    assert tunedex.lookup("softmax", 5, 70, batch=2, dtype="float32").config == default_of(SOFTMAX)
