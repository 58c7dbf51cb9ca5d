"""How few trials a search needs: Tunedex against Optuna's and Kernel Tuner's samplers, on recorded spaces, with no GPU.

    python benchmarks/search.py --recordings ../shared/data/recordings

Replays every sampler on every recording of a folder, each with the same seeds and counted alike (see `docs/search.md`),
and the searches that start from another device's recording of the same space. What is in the results already is kept
and not run again, unless ``--samplers`` names it. Kernel Tuner's strategies run in its simulation mode, in a process of
its own: ``--kernel-tuner`` is the Python that has it. Prints a table and writes one JSON document.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tunedex.cli.output import print_table
from tunedex.core.files import write_whole
from tunedex.interop.recordings import Recording, read_recordings
from tunedex.tuner.devices import detect, environment_of
from tunedex.tuner.replay import Landscape, Replay, Result, replay, replay_sampler
from tunedex.tuner.search.points import ABSENT
from tunedex.tuner.search.samplers import Sampler
from tunedex.tuner.settings import SETTINGS

HERE = Path(__file__).resolve().parent
OURS = Sampler.AUTO
OPTUNA = ("tpe", "tpe-univariate")
#: All of Kernel Tuner's that need no package besides and minimise one time, but for those that evaluate the same few
#: configs over and over (`minimize`) or are random or exhaustive by design. The last four are its newest.
STRATEGIES = (
    "genetic_algorithm",
    "diff_evo",
    "pso",
    "simulated_annealing",
    "greedy_ils",
    "greedy_mls",
    "ordered_greedy_mls",
    "mls",
    "firefly_algorithm",
    "dual_annealing",
    "basinhopping",
    "bayes_opt",
    "nsga2",
    "hybrid_vndx",
    "adaptive_tabu_greywolf",
)
PREFIX = "kernel_tuner."
SAMPLERS = (OURS, "random", *OPTUNA, *(PREFIX + name for name in STRATEGIES))
#: Seeds of the first round, and of a peer that takes longer a seed than ``--patience``.
FIRST_SEEDS = 5
PATIENCE_S = 2.0
#: A peer that takes longer a seed does not run: some of Kernel Tuner's never end once every config is tried.
LIMIT_S = 60.0
#: Ours may be this much behind the best of a cell.
MARGIN = 0.01

Cell = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=Path, default=HERE.parents[1] / "shared" / "data" / "recordings")
    parser.add_argument("--only", default="", help="recordings, by name, separated by commas; default all")
    parser.add_argument("--samplers", default="", help="samplers to run again, separated by commas; 'warm' is one")
    parser.add_argument("--seeds", type=int, default=SETTINGS.replaying.seeds)
    parser.add_argument("--patience", type=float, default=PATIENCE_S, help="seconds a seed of a peer that gets all")
    parser.add_argument("--kernel-tuner", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "search.json")
    parser.add_argument("--raw", type=Path, help="where the losses of every seed go, which --out has no room for")
    options = parser.parse_args()
    os.nice(10)
    asked = [name for name in options.samplers.split(",") if name]
    if unknown := [name for name in asked if name not in (*SAMPLERS, "warm")]:
        parser.error(f"sampler {unknown[0]} is unknown; known are {', '.join((*SAMPLERS, 'warm'))}")
    landscapes = {each.recording.name: each for each in recorded(options.recordings, options.only)}
    if not landscapes:
        parser.error(f"there is no recording in {options.recordings}")
    peer = KernelTuner(options.kernel_tuner)
    bench = Bench(options.out, options.raw, peer, options.patience)
    samplers = [name for name in asked or SAMPLERS if name in SAMPLERS]
    if not peer.version:
        print(f"{options.kernel_tuner} has no kernel_tuner; its strategies are left out", file=sys.stderr)
        samplers = [name for name in samplers if not name.startswith(PREFIX)]
    for seeds in sorted({min(FIRST_SEEDS, options.seeds), options.seeds}):
        for landscape in landscapes.values():
            for name in samplers:
                bench.cell(landscape, name, seeds, again=name in asked)
    if not asked or "warm" in asked:
        for source, target in pairs(list(landscapes.values())):
            bench.warm(source, target, options.seeds, again="warm" in asked)
    bench.write()
    show(bench.document)
    return 0


def recorded(folder: Path, only: str) -> Iterator[Landscape]:
    names = [name for name in only.split(",") if name]
    for path in sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")]):
        for recording in read_recordings(path):
            if not names or recording.name in names:
                yield Landscape(recording)


def pairs(landscapes: Sequence[Landscape]) -> Iterator[tuple[Landscape, Landscape]]:
    """The recordings of one space on two devices, each way."""
    for source in landscapes:
        for target in landscapes:
            ours, theirs = source.recording, target.recording
            if ours.device_name != theirs.device_name and ours.kernel == theirs.kernel and space(ours) == space(theirs):
                yield source, target


def space(recording: Recording) -> set[Any]:
    return {tuple(sorted(config.items())) for config in recording.configs}


class KernelTuner:
    """Kernel Tuner, in the interpreter that has it."""

    def __init__(self, python: str) -> None:
        self._python = python
        code = "import importlib.metadata as found; print(found.version('kernel_tuner'))"
        asked = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        self.version = asked.stdout.strip() if asked.returncode == 0 else ""

    def replays(self, strategy: str, landscape: Landscape, seeds: int) -> list[Replay] | str:
        """A replay a seed; or why there is none."""
        if (landscape.points.codes == ABSENT).any():
            return "Kernel Tuner has no configs that lack a parameter of others"
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(folder) / "recording.json"
            cache.write_text(json.dumps(cache_of(landscape)))
            task = {"cache": str(cache), "strategy": strategy, "seeds": seeds, "trials": SETTINGS.replaying.trials}
            command = [self._python, str(HERE / "kernel_tuner_peer.py")]
            try:
                done = subprocess.run(
                    command,
                    input=json.dumps(task),
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=seeds * LIMIT_S,
                )
            except subprocess.TimeoutExpired:
                return f"it takes longer than {LIMIT_S:.0f} s a seed"
        if done.returncode < 0:
            raise SystemExit(f"Kernel Tuner's process was ended by signal {-done.returncode}")
        runs = [json.loads(line) for line in done.stdout.splitlines()]
        if done.returncode or not runs:
            return (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        if "error" in runs[-1]:
            return str(runs[-1]["error"])
        return [Replay(tuple(run["trace"]), run["seconds"]) for run in runs]


def cache_of(landscape: Landscape) -> dict[str, Any]:
    """A recording as Kernel Tuner's cache, its parameters reduced to the values that occur: the product of those that
    are declared may be a thousand times larger."""
    recording = landscape.recording
    entries = {
        ",".join(str(config[name]) for name in recording.parameters): {
            **config,
            "time": "RuntimeFailedConfig" if time_ms is None else time_ms,
        }
        for config, time_ms in zip(recording.configs, recording.times_ms, strict=True)
    }
    return {
        "device_name": recording.device_name,
        "kernel_name": recording.kernel,
        "problem_size": 1,
        "tune_params_keys": list(recording.parameters),
        "tune_params": {parameter.name: parameter.values for parameter in landscape.points.parameters},
        "objective": "time",
        "cache": entries,
    }


class Bench:
    """The document of the results, written after every cell, and what fills it."""

    def __init__(self, out: Path, raw: Path | None, peer: KernelTuner, patience_s: float) -> None:
        self._out, self._raw, self._peer, self._patience_s = out, raw, peer, patience_s
        self.document: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
        self._losses: dict[str, Any] = json.loads(raw.read_text()) if raw and raw.exists() else {}
        self._done: set[tuple[str, str]] = set()

    def cell(self, landscape: Landscape, name: str, seeds: int, *, again: bool) -> None:
        """Run sampler ``name`` on ``landscape``, unless its results are there."""
        known: Cell = self._cells(landscape).get(name, {})
        slow = name not in (OURS, "random") and known.get("s_per_seed", 0.0) > self._patience_s
        if (not again or (landscape.recording.name, name) in self._done) and (
            "error" in known or known.get("seeds", 0) >= seeds or (slow and known)
        ):
            return
        self._done.add((landscape.recording.name, name))
        found = self._replays(landscape, name, seeds)
        self._cells(landscape)[name] = {"error": found} if isinstance(found, str) else self._filled(landscape, found)
        self._keep(landscape, name, found)
        print(f"{landscape.recording.name} {name}: {words(self._cells(landscape)[name])}", file=sys.stderr)

    def warm(self, source: Landscape, target: Landscape, seeds: int, *, again: bool) -> None:
        """Search ``target`` from what is known of ``source``; beside it the configs of ``source`` in order of time."""
        title = f"{source.recording.name} -> {target.recording.name}"
        known = self.document.setdefault("warm", {})
        if title in known and not again:
            return
        trials = SETTINGS.replaying.trials
        replays = [
            replay_sampler(OURS, target, trials=trials, seed=seed, warm=[source.recording]) for seed in range(seeds)
        ]
        ranking = [replay(Ranked(source, target), target, trials)]
        known[title] = {OURS: self._filled(target, replays), "ranking": self._filled(target, ranking)}
        self._keep(target, f"warm from {source.recording.name}", replays)
        print(f"{title}: {words(known[title][OURS])}", file=sys.stderr)

    def write(self) -> None:
        """Everything so far, whole or not at all."""
        device = detect("cpu")[0].device
        environment = environment_of(device)
        versions = {"optuna": importlib.metadata.version("optuna"), "kernel_tuner": self._peer.version}
        cells = self.document.get("recordings", {})
        ours = [found[OURS] for found in cells.values() if OURS in found]
        self.document = {
            "device": device.to_dict(),
            "environment": environment.to_dict(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": shlex.join(["python", *sys.argv]),
            "peers": {**self.document.get("peers", {}), **{name: text for name, text in versions.items() if text}},
            "trials": SETTINGS.replaying.trials,
            "recordings": cells,
            "warm": self.document.get("warm", {}),
            "near": self.document.get("near", {}),
            "ms_per_trial": max((cell["ms_per_trial"] for cell in ours), default=None),
            "batch": SETTINGS.replaying.batch,
            "summary": summary(cells),
        }
        self._out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._out, (laid_out(self.document) + "\n").encode())

    def _cells(self, landscape: Landscape) -> dict[str, Cell]:
        cells: dict[str, Cell] = self.document.setdefault("recordings", {}).setdefault(landscape.recording.name, {})
        return cells

    def _replays(self, landscape: Landscape, name: str, seeds: int) -> list[Replay] | str:
        if name.startswith(PREFIX):
            return self._peer.replays(name.removeprefix(PREFIX), landscape, seeds)
        trials = SETTINGS.replaying.trials
        return [replay_sampler(Sampler(name), landscape, trials=trials, seed=seed) for seed in range(seeds)]

    def _filled(self, landscape: Landscape, replays: Sequence[Replay]) -> Cell:
        result = Result.of(landscape, replays, SETTINGS.replaying.trials)
        cell = result.to_dict()
        near = [int(count) if math.isfinite(count) else None for count in result.trials_to_near]
        return {**cell, "trials_to_5_percent_by_seed": near, "s_per_seed": fmean(each.sampler_s for each in replays)}

    def _keep(self, landscape: Landscape, name: str, found: list[Replay] | str) -> None:
        """Write the results, and the losses of every seed where they are asked for."""
        if self._raw and not isinstance(found, str):
            result = Result.of(landscape, found, SETTINGS.replaying.trials)
            near = [count if math.isfinite(count) else None for count in result.trials_to_near]
            losses = {str(budget): result.losses[:, budget - 1].tolist() for budget in result.budgets()}
            self._losses.setdefault(landscape.recording.name, {})[name] = {"loss": losses, "trials_to_5_percent": near}
            write_whole(self._raw, json.dumps(self._losses).encode())
        self.write()


class Ranked:
    """The configs of another device's recording, the fastest first; those that failed there come last."""

    def __init__(self, source: Landscape, target: Landscape) -> None:
        times = {
            tuple(sorted(config.items())): math.inf if time_ms is None else time_ms
            for config, time_ms in zip(source.recording.configs, source.recording.times_ms, strict=True)
        }
        configs = target.recording.configs
        self._order = iter(sorted(range(len(configs)), key=lambda n: times[tuple(sorted(configs[n].items()))]))

    def ask(self) -> int | None:
        return next(self._order, None)

    def tell(self, point: int, value: float | None) -> None:
        """What was found changes nothing."""


def summary(recordings: dict[str, dict[str, Cell]]) -> dict[str, Any]:
    """The samplers that ran on every recording, by budget; and where ours is behind."""
    every = [
        name for name in SAMPLERS if recordings and all("loss" in cells.get(name, {}) for cells in recordings.values())
    ]
    budgets = [str(budget) for budget in SETTINGS.replaying.budgets]
    mean = {
        budget: {name: fmean(cells[name]["loss"][budget] for cells in recordings.values()) for name in every}
        for budget in budgets
    }
    rivals = [name for name in every if name != OURS]
    near = {
        name: [count for cells in recordings.values() for count in cells[name]["trials_to_5_percent_by_seed"]]
        for name in every
    }
    medians = {name: median(math.inf if count is None else count for count in counts) for name, counts in near.items()}
    return {
        "mean_loss": mean,
        "best_peer": {budget: min(rivals, key=mean[budget].__getitem__) for budget in budgets if rivals},
        "trials_to_5_percent": {name: count if math.isfinite(count) else None for name, count in medians.items()},
        "behind": list(behind(recordings)),
    }


def behind(recordings: dict[str, dict[str, Cell]]) -> Iterator[dict[str, Any]]:
    """The cells of recording and budget where ours is behind the best there by more than the margin."""
    for recording, cells in recordings.items():
        losses = {name: cell["loss"] for name, cell in cells.items() if "loss" in cell}
        if OURS not in losses or len(losses) < 2:
            continue
        for budget in map(str, SETTINGS.replaying.budgets):
            best = min((name for name in losses if name != OURS), key=lambda name: losses[name][budget])
            ours, theirs = losses[OURS][budget], losses[best][budget]
            if ours > theirs + MARGIN:
                yield {"recording": recording, "trials": int(budget), "loss": ours, "best": best, "best_loss": theirs}


def words(cell: Cell) -> str:
    if "error" in cell:
        return f"does not run: {cell['error']}"
    losses = ", ".join(f"{100 * loss:.1f} %" for loss in cell["loss"].values())
    return f"{losses}; {cell['seeds']} seeds, {cell['s_per_seed']:.2f} s each"


def laid_out(value: Any, depth: int = 0) -> str:
    """JSON with a line an entry down to the cells, each of which is one line."""
    if isinstance(value, float):
        return repr(float(f"{value:.5g}"))
    if depth < 3 and isinstance(value, dict) and value:
        pad = " " * (2 * depth + 2)
        inner = ",\n".join(f"{pad}{json.dumps(name)}: {laid_out(item, depth + 1)}" for name, item in value.items())
        return f"{{\n{inner}\n{pad[:-2]}}}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)}: {laid_out(item, depth)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(laid_out(item, 3) for item in value) + "]"
    return json.dumps(value)


def show(document: dict[str, Any]) -> None:
    """The means over all recordings, and where ours is behind."""
    found = document["summary"]
    budgets = list(found["mean_loss"])
    names = sorted(found["trials_to_5_percent"], key=lambda name: found["mean_loss"][budgets[-1]][name])
    rows = [
        [
            name,
            *(f"{100 * found['mean_loss'][budget][name]:.1f} %" for budget in budgets),
            found["trials_to_5_percent"][name] or "-",
        ]
        for name in names
    ]
    print_table(["<sampler", *budgets, "trials to 5 %"], rows, title=f"mean loss, {len(document['recordings'])} spaces")
    for cell in found["behind"]:
        line = f"{100 * cell['loss']:.1f} % against {100 * cell['best_loss']:.1f} % of {cell['best']}"
        print(f"behind: {cell['recording']} after {cell['trials']}: {line}")
    for title, cells in document["warm"].items():
        print(f"warm: {title}: {cells[OURS]['trials_to_5_percent'] or 'no'} trials to 5 %")
    if document["ms_per_trial"]:
        print(f"{OURS}: {document['ms_per_trial']:.1f} ms a trial, in batches of {document['batch']}")


if __name__ == "__main__":
    raise SystemExit(main())
