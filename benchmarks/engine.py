"""The tuning engine against triton.autotune: how many configs a second, whose winner, and what a sweep's time goes to.

    python benchmarks/engine.py --device cuda:0 --out benchmarks/results/h200/engine.json

Parts, each by itself with ``--only``:

- ``lists``: the same list of configs of the same Triton function, tuned by Tunedex and by `triton.autotune`, each with
  an empty compile cache: compiled, timed, and the winner known. Tunedex also verifies every config, takes a final and
  stores everything. The peer takes as many timed calls of a config as Tunedex takes samples of one on average, and is
  not verified. Both winners are then timed interleaved in one process.
- ``pool``: the compile pool against one process that compiles after the other.
- ``sweep``: the quick preset by `tuner sweep`, for the shares of its time.
- ``crashes``: the crash matrix.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crash_matrix import crash_matrix, tuner
from first_light import report_head

from tunedex.cli.output import microseconds, print_table
from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.files import write_whole
from tunedex.core.measurement import Failure, Measurement
from tunedex.core.problem import Problem
from tunedex.db import open_store
from tunedex.kernels import layernorm_gelu_residual, linear_gelu_triton
from tunedex.kernels.base import Tensors
from tunedex.kernels.rows_triton import lane_pitches
from tunedex.tuner.bench import Bench
from tunedex.tuner.compiling import CompilePool
from tunedex.tuner.devices import DetectedDevice, detect, environment_of
from tunedex.tuner.report import Effort, Report
from tunedex.tuner.space import Space
from tunedex.tuner.sweep import DeviceSweep
from tunedex.tuner.task_run import TaskRun
from tunedex.tuner.tasks import Task, parse_task

PROBLEMS = {
    "linear_gelu": "linear_gelu:m=4608,n=12288,k=3072,gelu=tanh,dtype=bfloat16",
    "layernorm_gelu_residual": "layernorm_gelu_residual:rows=4224,cols=3840,dtype=bfloat16",
}
PARTS = ("lists", "pool", "sweep", "crashes")
#: Configs that the serial compiler gets: enough for a mean, spread over the list.
COMPILED_ALONE = 20
SWEEP_TIMEOUT_S = 400

Tuned = Callable[[Tensors, Tensors], None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, help="where the JSON document goes; other parts stay as they are")
    parser.add_argument("--only", default="", help=f"parts, separated by commas: {', '.join(PARTS)}; default all")
    parser.add_argument("--configs", type=int, default=1000, help="the most configs of a list")
    options = parser.parse_args()
    parts = [part for part in options.only.split(",") if part] or PARTS
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only {', '.join(sorted(unknown))} is unknown; known are {', '.join(PARTS)}")
    found = detect(options.device)[0]
    report = Report(found, environment_of(found.device))
    document: dict[str, Any] = {}
    if options.out and options.out.exists():
        document = json.loads(options.out.read_text())
    origin = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
    }
    document |= report_head(report) | origin
    for part in PARTS:
        if part in parts:
            measured_in = {"environment": report.environment.key}
            document |= {part: run_part(part, found, options.configs) | origin | measured_in}
            document |= summary(document)
            if options.out:
                write_whole(options.out, (json.dumps(document, indent=2) + "\n").encode())
    show(document)
    return 0


def run_part(part: str, found: DetectedDevice, most: int) -> dict[str, Any]:
    if part == "lists":
        tasks = {name: parse_task(text, found.device) for name, text in PROBLEMS.items()}
        return {"kernels": {name: against_autotune(found, task, most) for name, task in tasks.items()}}
    if part == "pool":
        return compile_speedup(found, most)
    if part == "sweep":
        return quick_sweep(found.selector)
    return {"kinds": crash_matrix(found.selector)}


def summary(document: dict[str, Any]) -> dict[str, Any]:
    """The figures that the engine is judged by, of the parts that are there."""
    out: dict[str, Any] = {}
    if "lists" in document:
        linear = document["lists"]["kernels"]["linear_gelu"]
        out |= {name: linear[name] for name in ("rate_ratio_to_triton_autotune", "winner_time_ratio")}
    if "pool" in document:
        out["compile_speedup"] = document["pool"]["speedup"]
    if "sweep" in document:
        names = ("gpu_busy_share", "overhead_share", "verify_share")
        out |= {name: document["sweep"]["spent"][name] for name in names}
    if "crashes" in document:
        out["crash_matrix"] = document["crashes"]["kinds"]
    return out


@contextmanager
def empty_cache() -> Iterator[None]:
    """Let Triton compile into a folder that holds nothing yet, in this process and in those that it starts."""
    before = os.environ.get("TRITON_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        try:
            yield
        finally:
            os.environ.pop("TRITON_CACHE_DIR")
            if before is not None:
                os.environ["TRITON_CACHE_DIR"] = before


def listed(found: DetectedDevice, task: Task, most: int) -> list[Config]:
    """The configs that one Triton function runs: of the product those with pointers, of the norm those of one program
    a tile, whose number of tiles alone depends on the config."""
    space = Space.of(task.kernel, task.problems[0], found.device)
    wanted = {"variant": "pointer"} if task.kernel.name == "linear_gelu" else {"programs": 0, "gelu_math": "fitted"}
    configs = [
        config
        for config in space
        if config.implementation == "triton" and all(config.values[name] == value for name, value in wanted.items())
    ]
    return configs[:: max(1, -(-len(configs) // most))]


def against_autotune(found: DetectedDevice, task: Task, most: int) -> dict[str, Any]:
    problem, configs = task.problems[0], listed(found, task, most)
    with empty_cache():
        ours = tuned_by_us(found, task, configs)
    repeats = max(1, round(ours["samples"]))
    bench = Bench(found.device, found.index)
    bench.open(problem, task.max_error, 0.0)
    with empty_cache():
        theirs = tuned_by_triton(found, bench, configs, repeats)
        winners = {"ours": ours["winner"], "theirs": theirs["winner"]}
        samples = bench.interleaved(
            {name: bench.bind(config) for name, config in winners.items()}, bench.opened.policy, 4.0
        )
    times = {name: median(taken) for name, taken in samples.items() if not isinstance(taken, Failure)}
    return {
        "problem": problem.to_dict(),
        "configs": len(configs),
        "ours": {**ours, "winner": winners["ours"].to_dict(), "winner_us": times["ours"]},
        "triton_autotune": {**theirs, "winner": winners["theirs"].to_dict(), "winner_us": times["theirs"]},
        "repeats": repeats,
        "rate_ratio_to_triton_autotune": theirs["wall_s"] / ours["wall_s"],
        "rate_ratio_with_start_and_ceilings": theirs["wall_s"] / ours["whole_s"],
        "winner_time_ratio": times["ours"] / times["theirs"],
        "verify_share": ours["verify_share"],
    }


def tuned_by_us(found: DetectedDevice, task: Task, configs: Sequence[Config]) -> dict[str, Any]:
    """``wall_s`` is from the list to what is published, with a device that is held and whose ceilings are known, as
    they are for all but the first problem of a sweep; ``whole_s`` is with that, and with the start of the processes."""
    problem = task.problems[0]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, open_store(f"{folder}/engine.db") as store:
        sweep = DeviceSweep(store, found, environment_of(found.device), Effort(None, None))
        with sweep.session([task], {"command": shlex.join(sys.argv)}, lambda: True) as context:
            ready = time.monotonic()
            run = TaskRun(context, task)
            tried = run.try_all(problem, configs)
            searched = time.monotonic()
            result = run.conclude(problem)
            end = time.monotonic()
            pool = context.pool.stats() if context.pool else None
            spent = context.ledger.spent
    measured = [trial.outcome for trial in tried if isinstance(trial.outcome, Measurement)]
    assert result.own is not None
    return {
        "winner": result.own.config,
        "wall_s": end - ready,
        "search_s": searched - ready,
        "whole_s": end - begin,
        "measured": len(measured),
        "failed": len(tried) - len(measured),
        "samples": mean(outcome.samples for outcome in measured),
        "verify_share": spent.verify_share,
        "compile_s": pool.compile_s if pool else None,
        "spent": spent.to_dict(),
    }


def tuned_by_triton(found: DetectedDevice, bench: Bench, configs: Sequence[Config], repeats: int) -> dict[str, Any]:
    """``wall_s`` is the first call of the autotuned function, in a process that has done all else before."""
    problem = bench.opened.problem
    if problem.kernel == "linear_gelu":
        winner, call = triton_linear(found.device, problem, configs, repeats)
    else:
        winner, call = triton_norm(problem, configs, repeats)
    operands, outputs = bench.opened.inputs[0].operands, bench.opened.outputs.tensors
    torch.cuda.synchronize()
    begin = time.monotonic()
    call(operands, outputs)
    torch.cuda.synchronize()
    wall_s = time.monotonic() - begin
    return {"winner": winner(), "wall_s": wall_s}


def triton_linear(
    device: Device, problem: Problem, configs: Sequence[Config], repeats: int
) -> tuple[Callable[[], Config], Tuned]:
    import triton

    plans = [linear_gelu_triton._plan(problem, config, device) for config in configs]
    shared = {"FORM", "PRECISION"}
    choices = [as_triton(plan.meta, shared) for plan in plans]
    tuned = triton.autotune(choices, key=["rows", "n", "k"], do_bench=partial(exactly, repeats))(plans[0].function)
    fixed = {name: plans[0].meta[name] for name in shared}
    rows, n, _ = plans[0].sizes

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (triton.cdiv(rows, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)

    def call(operands: Tensors, outputs: Tensors) -> None:
        x, out = operands["x"], outputs["out"]
        x, out = x.view(-1, x.shape[-1]), out.view(-1, out.shape[-1])
        tuned[grid](*plans[0].arguments(x, operands["weight"], operands["bias"], out), **fixed)

    return lambda: configs[choices.index(tuned.best_config)], call


def triton_norm(problem: Problem, configs: Sequence[Config], repeats: int) -> tuple[Callable[[], Config], Tuned]:
    import triton

    total = problem.batch * problem.dims["rows"]
    metas = [layernorm_gelu_residual._meta(problem, config.values, total) for config in configs]
    shared = {"COLS", "LANES", "WALK", "FORM", "Q"}
    choices = [as_triton(meta, shared) for meta in metas]
    counted = triton.heuristics({"tiles": lambda arguments: triton.cdiv(total, arguments["ROWS"])})
    function = counted(layernorm_gelu_residual._rows)
    tuned = triton.autotune(choices, key=["total"], do_bench=partial(exactly, repeats))(function)
    fixed = {name: metas[0][name] for name in shared}

    def call(operands: Tensors, outputs: Tensors) -> None:
        x, residual = operands["x"], operands["residual"]
        x_batch, x_row = lane_pitches(x, fixed["LANES"])
        r_batch, r_row = lane_pitches(residual, fixed["LANES"])
        tuned[lambda meta: (triton.cdiv(total, meta["ROWS"]),)](
            X=x,
            WEIGHT=operands["weight"],
            BIAS=operands["bias"],
            RESIDUAL=residual,
            OUT=outputs["out"],
            total=total,
            rows=problem.dims["rows"],
            x_batch=x_batch,
            x_row=x_row,
            r_batch=r_batch,
            r_row=r_row,
            eps=layernorm_gelu_residual.EPS,
            **fixed,
        )

    return lambda: configs[choices.index(tuned.best_config)], call


def as_triton(meta: Any, shared: set[str]) -> Any:
    """One config as `triton.autotune` takes it, without what is the same for all."""
    import triton

    own = {name: value for name, value in meta.items() if name.isupper() and name not in shared}
    return triton.Config(own, num_warps=meta["num_warps"], num_stages=meta.get("num_stages", 1))


def exactly(repeats: int, call: Callable[[], object], quantiles: Sequence[float]) -> list[float]:
    """The quantiles of the milliseconds of ``repeats`` calls, with an overwritten cache before each."""
    flush = torch.empty(256 * 2**20, dtype=torch.int8, device="cuda")
    call()
    events = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(repeats)]
    for start, end in events:
        flush.zero_()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    times = torch.tensor([start.elapsed_time(end) for start, end in events])
    found: list[float] = torch.quantile(times, torch.tensor(quantiles)).tolist()
    return found


def compile_speedup(found: DetectedDevice, most: int) -> dict[str, Any]:
    """The product's list through the pool against the mean time of a config where one process compiles alone. The start
    of the processes is in neither, since those of a sweep start while its device is looked at."""
    task = parse_task(PROBLEMS["linear_gelu"], found.device)
    configs = listed(found, task, most)
    alone = configs[:: max(1, len(configs) // COMPILED_ALONE)]
    one = compiled_by(found, task, alone, 1)
    pool = compiled_by(found, task, configs, None)
    each_s = one["compile_s"] / one["compiled"]
    return {
        "processes": pool["processes"],
        "configs": len(configs),
        "alone_s": each_s,
        "pool_s": pool["wall_s"] / pool["compiled"],
        "speedup": each_s * pool["compiled"] / pool["wall_s"],
        "pool_slows_each": pool["compile_s"] / pool["compiled"] / each_s,
    }


def compiled_by(found: DetectedDevice, task: Task, configs: Sequence[Config], processes: int | None) -> dict[str, Any]:
    with empty_cache():
        pool = CompilePool(found.device, processes=processes)
        pool.ready()
        try:
            for future in [pool.submit(task.problems[0], config) for config in configs]:
                future.result()
            stats = pool.stats()
        finally:
            pool.close()
    return {
        "processes": pool.processes,
        "compiled": stats.compiled,
        "compile_s": stats.compile_s,
        "wall_s": stats.wall_s,
    }


def quick_sweep(selector: str) -> dict[str, Any]:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        options = ["--device", selector, "--preset", "quick", "--db", f"{folder}/quick.db", "--json"]
        done = tuner("sweep", *options, timeout_s=SWEEP_TIMEOUT_S)
    done.check_returncode()
    wall_s = time.monotonic() - begin
    report = json.loads(done.stdout)
    results = report["results"]
    return {"wall_s": wall_s, "trials": sum(r["trials"] for r in results), "spent": report["spent"], "results": results}


def show(document: dict[str, Any]) -> None:
    rows = []
    for name, row in document.get("lists", {}).get("kernels", {}).items():
        ours, theirs = row["ours"], row["triton_autotune"]
        seconds = [f"{wall_s:.1f} s" for wall_s in (ours["wall_s"], ours["whole_s"], theirs["wall_s"])]
        best = [microseconds(side["winner_us"]) for side in (ours, theirs)]
        ratio = f"{row['rate_ratio_to_triton_autotune']:.1f}x"
        rows.append([name, row["configs"], row["repeats"], *seconds, ratio, *best])
    if rows:
        columns = ["configs", "repeats", "ours", "whole", "triton.autotune", "ratio", "our best", "their best"]
        print_table(["<list", *columns], rows)
    print(json.dumps(summary(document), indent=2))


if __name__ == "__main__":
    raise SystemExit(main())
