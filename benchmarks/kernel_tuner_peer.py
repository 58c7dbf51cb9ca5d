"""Kernel Tuner's strategies on recorded spaces, in an interpreter that has Kernel Tuner and none of ours.

Reads one JSON document from standard input: ``cache`` (the path of a cache file whose ``tune_params`` are the values
that occur in it), ``strategy``, ``seeds`` (how many) and ``trials``. Writes one line of JSON a seed to standard output,
``{"seconds", "trace"}``, where the trace holds the places in the cache of the distinct configs that were evaluated, in
their order; or ``{"error"}``, where the strategy does not run. The space is the cache's own: membership is a
restriction. It is built once, and every run takes it.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import warnings
from typing import Any

import kernel_tuner
import numpy as np
from constraint import FunctionConstraint
from kernel_tuner import interface, util

cost_of_result = util.get_result_cost


def main() -> int:
    task = json.load(sys.stdin)
    # Whatever Kernel Tuner prints, it prints elsewhere.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    cache = util.read_cache(task["cache"], open_cache=False)
    places = {key: place for place, key in enumerate(cache["cache"])}
    arguments = space_of(cache, task["cache"])
    prepare(cache, arguments)
    for seed in range(task["seeds"]):
        start = time.monotonic()
        try:
            trace = run(task["strategy"], seed, task["trials"], arguments, places)
        except Exception as error:  # noqa: BLE001 - a strategy that does not run here is named, and left out
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=out)
            break
        print(json.dumps({"seconds": time.monotonic() - start, "trace": trace}), file=out)
    return 0


def space_of(cache: dict[str, Any], path: str) -> dict[str, Any]:
    """The arguments of `tune_kernel` that say what is tuned."""
    names = cache["tune_params_keys"]
    members = {tuple(entry[name] for name in names) for entry in cache["cache"].values()}
    return {
        "kernel_name": cache["kernel_name"],
        "kernel_source": "",
        "problem_size": 1,
        "arguments": [],
        "cache": path,
        "simulation_mode": True,
        "objective": "time",
        "quiet": True,
        "tune_params": cache["tune_params"],
        "restrictions": [FunctionConstraint(lambda *values: values in members)],
    }


def prepare(cache: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Have every run take one space and one cache, which Kernel Tuner would make anew each time."""
    space = interface.Searchspace(arguments["tune_params"], arguments["restrictions"], 1_000_000_000)
    if space.size != len(cache["cache"]):
        raise SystemExit(f"Kernel Tuner's space has {space.size} configs, the cache {len(cache['cache'])}")
    interface.Searchspace = lambda *_, **__: space
    util.process_cache = lambda *_: cache["cache"]


def mend_bayes_opt(seed: int) -> None:
    """Let Kernel Tuner's Bayesian optimisation know a failure, which version 1.5 tells it by another number than it
    looks for, so that it learns nothing after the first; and draw its first sample by the seed."""
    from kernel_tuner.strategies import bayes_opt
    from scipy.stats.qmc import LatinHypercube

    bayes_opt.LatinHypercube = lambda d: LatinHypercube(d=d, rng=seed)
    util.get_result_cost = lambda result, *rest: [1e20] if "__error__" in result else cost_of_result(result, *rest)


def run(strategy: str, seed: int, trials: int, arguments: dict[str, Any], places: dict[str, int]) -> list[int]:
    """The places of the configs that one run evaluates. A strategy may end before its trials do."""
    random.seed(seed)
    np.random.seed(seed)
    if strategy == "bayes_opt":
        mend_bayes_opt(seed)
    results, _ = kernel_tuner.tune_kernel(
        **arguments,
        strategy=strategy,
        strategy_options={"max_fevals": trials},
        seed=seed,
    )
    names = list(arguments["tune_params"])
    trace = dict.fromkeys(places[",".join(str(result[name]) for name in names)] for result in results)
    return list(trace)[:trials]


if __name__ == "__main__":
    raise SystemExit(main())
