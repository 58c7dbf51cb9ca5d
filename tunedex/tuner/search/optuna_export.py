"""Trials as Optuna studies, for its dashboard, its plots and its importances.

A study is of one problem on one device. Its value is the time in microseconds; its parameters are the tunables with
their real values, and `implementation`. A failed trial has the state FAIL and its kind as a user attribute.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import URL, create_engine, inspect
from sqlalchemy.exc import SQLAlchemyError

from tunedex.core.config import Value
from tunedex.core.display import one_line
from tunedex.core.errors import BadInput, DatabaseError
from tunedex.core.measurement import Failure
from tunedex.db.engine import name_of, translated
from tunedex.db.records import Trial
from tunedex.interop.trials import TrialSet

optuna.logging.set_verbosity(optuna.logging.ERROR)

#: A table that Optuna's storage always has.
_TABLE_OF_OPTUNA = "studies"


@dataclass(frozen=True)
class Study:
    """What one study is to hold."""

    name: str
    trials: Sequence[FrozenTrial] = field(repr=False)
    attributes: Mapping[str, object] = field(repr=False)

    @property
    def failures(self) -> int:
        return sum(trial.state is TrialState.FAIL for trial in self.trials)

    @property
    def best_us(self) -> float | None:
        return min((trial.value for trial in self.trials if trial.value is not None), default=None)


def studies_of(sets: Sequence[TrialSet]) -> list[Study]:
    """A study of each set."""
    return [_study(each, sets) for each in sets]


def export_studies(studies: Sequence[Study], url: URL, *, database: URL) -> None:
    """Write ``studies`` into the Optuna storage at ``url``, which is made where there is none.

    Raises:
        BadInput: ``url`` is ``database``, the one that the trials are from, and no Optuna storage; or there is a study
            of one of the names.
        DatabaseError: it cannot be opened or written, or is of a version of Optuna's that this one does not use.
    """
    if url == database and not _has_studies(url):
        raise BadInput(
            f"{name_of(url)} is the database that the trials are in; give Optuna's studies another, "
            "such as sqlite:///studies.db",
            field="url",
        )
    with _told(url):
        storage = RDBStorage(url.render_as_string(hide_password=False))
        try:
            there = set(optuna.get_all_study_names(storage))
            if taken := [study.name for study in studies if study.name in there]:
                raise BadInput(f"{name_of(url)} has a study {taken[0]} already; give another URL", field="url")
            _write(studies, storage)
        finally:
            storage.remove_session()
            storage.engine.dispose()


def _write(studies: Sequence[Study], storage: RDBStorage) -> None:
    """Write all studies, or leave none of them."""
    made: list[str] = []
    try:
        for each in studies:
            study = optuna.create_study(storage=storage, study_name=each.name, direction="minimize")
            made.append(each.name)
            study.set_metric_names(["time_us"])
            for name, value in each.attributes.items():
                study.set_user_attr(name, value)
            study.add_trials(each.trials)
    except BaseException:
        for name in made:
            optuna.delete_study(study_name=name, storage=storage)
        raise


@contextmanager
def _told(url: URL) -> Iterator[None]:
    """What Optuna and its driver say, as an error of ours."""
    with warnings.catch_warnings(), translated(url):
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            yield
        except (optuna.exceptions.OptunaError, RuntimeError) as error:
            reason = error.__cause__ if isinstance(error.__cause__, SQLAlchemyError) else error
            raise DatabaseError(f"database {name_of(url)}: {one_line(reason)}") from error


def _has_studies(url: URL) -> bool:
    with translated(url):
        engine = create_engine(url)
        try:
            return bool(inspect(engine).has_table(_TABLE_OF_OPTUNA))
        finally:
            engine.dispose()


def _study(of: TrialSet, among: Sequence[TrialSet]) -> Study:
    distributions = {name: _distribution(values) for name, values in of.space().items()}
    return Study(
        name=of.title(among, device=True),
        trials=[_trial(trial, distributions) for trial in of.trials],
        attributes={name: value for name, value in of.to_dict().items() if name not in ("space", "trials")},
    )


def _trial(trial: Trial, distributions: Mapping[str, BaseDistribution]) -> FrozenTrial:
    params = trial.config.to_dict()
    attributes: dict[str, object] = {"stage": trial.stage.value}
    outcome = trial.outcome
    if isinstance(outcome, Failure):
        attributes |= {"failure": outcome.kind.value, "detail": outcome.detail}
    else:
        attributes |= {name: value for name, value in outcome.to_dict().items() if name != "time_us"}
    made = create_trial(
        state=TrialState.FAIL if isinstance(outcome, Failure) else TrialState.COMPLETE,
        value=None if isinstance(outcome, Failure) else outcome.time_us,
        params={name: _as_held(value, distributions[name]) for name, value in params.items()},
        distributions={name: distributions[name] for name in params},
        user_attrs=attributes,
    )
    if trial.created_at is not None:  # Optuna keeps local times
        made.datetime_start = made.datetime_complete = trial.created_at.astimezone().replace(tzinfo=None)
    return made


def _distribution(values: Sequence[Value]) -> BaseDistribution:
    """The distribution that has every one of ``values``, in ascending order where they are numbers, and shows them as
    they are: as steps where they are evenly apart, and else on a logarithmic scale where they can be."""
    if any(isinstance(value, bool | str) for value in values):
        # 1 and True are one choice to Optuna, so a parameter that has both kinds is told by its words.
        one_kind = len({type(value) for value in values}) == 1
        return CategoricalDistribution(values if one_kind else [str(value) for value in values])
    numbers = [value for value in values if not isinstance(value, str)]
    low, high = numbers[0], numbers[-1]
    steps = {after - before for before, after in itertools.pairwise(numbers)}
    if any(isinstance(value, float) for value in numbers):
        return FloatDistribution(low, high, log=low > 0 and len(steps) > 1)
    if len(steps) == 1:
        return IntDistribution(int(low), int(high), step=int(steps.pop()))
    return IntDistribution(int(low), int(high), log=low > 0 and len(steps) > 1)


def _as_held(value: Value, distribution: BaseDistribution) -> Value:
    if isinstance(distribution, CategoricalDistribution) and value not in distribution.choices:
        return str(value)
    return value
