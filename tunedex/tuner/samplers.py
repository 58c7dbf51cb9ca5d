"""The samplers that a search can be replayed with, by name: ours, and Optuna's own for comparison."""

from __future__ import annotations

from collections.abc import Sequence

from tunedex.core.errors import BadInput
from tunedex.interop.recordings import Recording
from tunedex.tuner.optuna_guesser import OPTUNA_SAMPLERS, OptunaGuesser
from tunedex.tuner.replay import Landscape, Proposer, Replay, Shuffled, replay, replay_guesses
from tunedex.tuner.search.proposer import Sampler
from tunedex.tuner.settings import SETTINGS

#: Those that take the points in a random order: the whole of a recording is known, so running it whole is no different.
_SHUFFLED = (Sampler.RANDOM.value, Sampler.BRUTE_FORCE.value)

REPLAYED = (Sampler.AUTO.value, *_SHUFFLED, *OPTUNA_SAMPLERS)


def check_sampler(name: str) -> str:
    """``name`` itself.

    Raises:
        BadInput: no sampler is called so.
    """
    if name not in REPLAYED:
        raise BadInput(f"--sampler {name} is unknown; known are {', '.join(REPLAYED)}", field="sampler")
    return name


def replay_sampler(
    name: str, landscape: Landscape, *, trials: int, seed: int, warm: Sequence[Recording] = ()
) -> Replay:
    """Replay the sampler ``name`` on ``landscape``. Of the samplers, `auto` alone learns from ``warm``.

    Raises:
        CannotRun: the sampler needs a package that is not installed.
    """
    if name in OPTUNA_SAMPLERS:
        return replay_guesses(OptunaGuesser(name, landscape.points, seed), landscape, trials, seed=seed)
    return replay(_proposer(name, landscape, trials, seed, warm), landscape, trials, batch=SETTINGS.replaying.batch)


def _proposer(name: str, landscape: Landscape, trials: int, seed: int, warm: Sequence[Recording]) -> Proposer:
    if name in _SHUFFLED:
        return Shuffled(len(landscape), seed)
    from tunedex.tuner.search.proposer import proposer

    found: Proposer = proposer(Sampler(name), landscape.points, seed=seed, trials=trials, warm=warm)
    return found
