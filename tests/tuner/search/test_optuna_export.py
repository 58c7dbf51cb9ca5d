"""Optuna studies of trials: real values in the parameters, failures by kind, beside Tunedex's own tables or not."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState
from sqlalchemy import URL

from tunedex.core.catalog import builtin_signatures
from tunedex.core.config import Config, Value
from tunedex.core.device import Device, Environment
from tunedex.core.errors import BadInput
from tunedex.core.measurement import Failure, FailureKind, Measurement, Policy
from tunedex.db import open_store
from tunedex.db.records import Trial
from tunedex.db.urls import parse
from tunedex.interop.trials import TrialSet
from tunedex.tuner.search.optuna_export import export_studies, studies_of

DEVICE = Device.from_key("nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g")
ENVIRONMENT = Environment(python="3.11")
(SIGNATURE,) = (signature for signature in builtin_signatures() if signature.kernel == "softmax")
PROBLEM = SIGNATURE.problem({"rows": 64, "cols": 256, "dtype": "float32"})
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def trial(time_us: float | None, implementation: str = "triton", version: str = "a", **values: Value) -> Trial:
    outcome: Measurement | Failure = Failure(FailureKind.TIMEOUT, "took too long")
    if time_us is not None:
        outcome = Measurement(time_us, time_us, time_us, 20, Policy.EAGER_COLD, 1e-7, True, "ab12")
    config = Config(implementation, values)
    return Trial(PROBLEM, DEVICE.key, ENVIRONMENT.key, version, config, outcome, created_at=NOW)


def trial_set(*trials: Trial) -> TrialSet:
    return TrialSet(DEVICE, ENVIRONMENT.key, ENVIRONMENT, PROBLEM, trials[0].kernel_version, trials)


SET = trial_set(
    trial(9.0, "library"),
    trial(5.0, warps=4, block=64, path="vector", swizzle=True),
    trial(4.0, warps=8, block=1024, path="plain", swizzle=False),
    trial(None, warps=8, block=256, path="plain", swizzle=True),
)


@pytest.fixture
def url(tmp_path: Path) -> URL:
    return parse(str(tmp_path / "studies.db"))


@pytest.fixture
def database(tmp_path: Path) -> URL:
    return parse(str(tmp_path / "tunedex.db"))


def loaded(url: URL, name: str | None = None) -> optuna.Study:
    text = url.render_as_string(hide_password=False)
    return optuna.load_study(study_name=name or optuna.get_all_study_names(text)[0], storage=text)


def test_a_study_shows_real_values_and_failures_by_their_kind(url: URL, database: URL) -> None:
    export_studies(studies_of([SET]), url, database=database)
    study = loaded(url, f"{PROBLEM} @ {DEVICE.key}")
    assert study.best_params == {
        "implementation": "triton",
        "warps": 8,
        "block": 1024,
        "path": "plain",
        "swizzle": False,
    }
    assert study.best_value == 4.0
    assert study.metric_names == ["time_us"]
    assert study.user_attrs["device"]["key"] == DEVICE.key
    assert study.user_attrs["kernel_version"] == "a"
    library, *_, failed = study.trials
    assert library.params == {"implementation": "library"}
    assert (failed.state, failed.value) == (TrialState.FAIL, None)
    assert failed.user_attrs == {"stage": "search", "failure": "timeout", "detail": "took too long"}
    assert library.user_attrs["error"] == 1e-7
    assert library.datetime_complete == NOW.astimezone().replace(tzinfo=None)


def test_optunas_own_tools_work_on_it(url: URL, database: URL) -> None:
    times = {(block, warps): 10.0 + block / 64 - warps for block in (64, 128, 256, 512) for warps in (1, 2, 4, 8)}
    trials = [trial(time_us, block=block, warps=warps) for (block, warps), time_us in times.items()]
    export_studies(studies_of([trial_set(*trials)]), url, database=database)
    importance = optuna.importance.get_param_importances(
        loaded(url), evaluator=optuna.importance.PedAnovaImportanceEvaluator()
    )
    assert set(importance) == {"block", "warps", "implementation"} or set(importance) == {"block", "warps"}
    study = loaded(url)
    study.tell(study.ask(study.best_trial.distributions), 1.0)  # a search goes on from it


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1, 2, 4, 8), IntDistribution(1, 8, log=True)),
        ((0, 1, 2, 4), IntDistribution(0, 4)),
        ((16, 32, 48), IntDistribution(16, 48, step=16)),
        ((7,), IntDistribution(7, 7)),
        ((0.5, 1), FloatDistribution(0.5, 1.0)),
        ((0.25, 0.5, 1.0), FloatDistribution(0.25, 1.0, log=True)),
        (("plain", "vector"), CategoricalDistribution(("plain", "vector"))),
        ((False, True), CategoricalDistribution((False, True))),
        ((0, "auto"), CategoricalDistribution(("0", "auto"))),
    ],
)
def test_distributions_hold_every_value(values: tuple[Value, ...], expected: BaseDistribution) -> None:
    (study,) = studies_of([trial_set(*(trial(1.0, x=value) for value in values))])
    assert {each.distributions["x"] for each in study.trials} == {expected}
    for value, each in zip(values, study.trials, strict=True):
        assert each.params["x"] in (value, str(value))


def test_kernel_versions_are_studies_of_their_own(url: URL, database: URL) -> None:
    sets = [trial_set(trial(1.0, version=version, block=64)) for version in ("a", "b")]
    export_studies(studies_of(sets), url, database=database)
    names = optuna.get_all_study_names(url.render_as_string(hide_password=False))
    assert sorted(names) == [f"{PROBLEM} @ {DEVICE.key} @ {version}" for version in ("a", "b")]


def test_nothing_is_written_where_one_of_the_studies_is_there(url: URL, database: URL) -> None:
    sets = [trial_set(trial(1.0, version=version, block=64)) for version in ("a", "b")]
    export_studies(studies_of(sets)[1:], url, database=database)
    with pytest.raises(BadInput, match=r"has a study .* already; give another URL"):
        export_studies(studies_of(sets), url, database=database)
    assert len(optuna.get_all_study_names(url.render_as_string(hide_password=False))) == 1


def test_a_study_that_cannot_be_written_leaves_none(url: URL, database: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    studies = studies_of([trial_set(trial(1.0, version=version, block=64)) for version in ("a", "b")])
    object.__setattr__(studies[1], "trials", [*studies[1].trials, None])
    with pytest.raises(AttributeError):
        export_studies(studies, url, database=database)
    assert optuna.get_all_study_names(url.render_as_string(hide_password=False)) == []


def test_tunedexs_own_database_takes_studies_only_where_optuna_has_made_its_tables(database: URL) -> None:
    text = database.render_as_string(hide_password=False)
    with open_store(str(database.database)):
        pass
    with pytest.raises(BadInput, match="is the database that the trials are in"):
        export_studies(studies_of([SET]), database, database=database)
    optuna.create_study(storage=text, study_name="somebody's")
    export_studies(studies_of([SET]), database, database=database)
    assert len(optuna.get_all_study_names(text)) == 2
    with open_store(str(database.database), create=False) as store:
        assert store.counts()["trials"] == 0


def test_a_database_that_optuna_made_first_takes_tunedexs_tables(url: URL, database: URL) -> None:
    export_studies(studies_of([SET]), url, database=database)
    with open_store(str(url.database)) as store:
        assert store.counts()["trials"] == 0
    assert loaded(url).best_value == 4.0
