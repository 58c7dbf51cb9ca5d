"""The quick sweep and its peers in one run: is what Tunedex serves faster than what a user would pick instead?

    python benchmarks/first_light.py --device cuda:0 --out benchmarks/results/h200/first-light.json

First sweeps the ``quick`` preset into a database of its own, then times for each problem, interleaved and under the
problem's own policy: our fastest own config, the config that is served, the default, the library call, a device copy
of as many bytes, and the peers `eager`, `compile` (torch.compile) and `max_autotune`
(torch.compile(mode="max-autotune-no-cudagraphs")). Prints a table and writes one JSON document.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tunedex.cli.output import microseconds, print_table
from tunedex.core.measurement import Failure
from tunedex.db import open_store
from tunedex.db.records import Ceilings
from tunedex.interop.trials import TrialSet, read_trial_sets, trial_sets, write_trial_sets
from tunedex.kernels.base import Kernel, Launch, Tensors
from tunedex.kernels.registry import get_kernel
from tunedex.tuner.bench import Bench
from tunedex.tuner.ceilings import shortest_us
from tunedex.tuner.devices import DetectedDevice, detect, environment_of
from tunedex.tuner.report import Effort, Report, Result
from tunedex.tuner.sweep import DeviceSweep
from tunedex.tuner.tasks import preset_named, tasks_for

SECONDS_A_PROBLEM = 6.0
MODES = {"compile": None, "max_autotune": "max-autotune-no-cudagraphs"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="where the JSON document goes")
    parser.add_argument("--merge", action="store_true", help="keep the rows that --out has of other kernels")
    parser.add_argument("--db", help="database to sweep into; default a new one")
    parser.add_argument("--trials", type=int, help="configs a problem; default the preset's")
    parser.add_argument("--budget", type=float, help="seconds the sweep may take; default the preset's")
    parser.add_argument("--kernels", default="", help="kernels, separated by commas; default all")
    parser.add_argument("--problem", action="append", default=[], help="a problem instead of the preset's")
    parser.add_argument("--skip", default="", help="peers to leave out, separated by commas")
    parser.add_argument("--deadline", type=float, default=540, help="seconds after which no further peer is compiled")
    options = parser.parse_args()
    start = time.monotonic()
    preset = preset_named("quick")
    found = detect(options.device)[0]
    environment = environment_of(found.device)
    names = [name for name in options.kernels.split(",") if name]
    effort = Effort(options.trials or preset.trials, options.budget or preset.budget_s)
    with tempfile.TemporaryDirectory() as folder, open_store(options.db or f"{folder}/first-light.db") as store:
        sweep = DeviceSweep(store, found, environment, effort)
        report = sweep.run(tasks_for(found.device, names, options.problem), {"command": shlex.join(sys.argv)})
        ceilings = store.ceilings(found.device.key, environment.key)
        stats = store.counts()
        sets = trial_sets(store)
    sweep_s = time.monotonic() - start
    assert ceilings is not None
    skipped = set(options.skip.split(","))
    rows = []
    for result in report.results:
        peers = [name for name in ("eager", *MODES) if name not in skipped]
        if time.monotonic() - start > options.deadline:
            peers = ["eager"]
        rows.append(compare(found, ceilings, result, peers))
        show(rows[-1:])
    origin = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
    }
    measured_in = {"environment": environment.key}
    rows = [{**row, **origin, **measured_in} for row in rows]
    document = {
        **report_head(report),
        **origin,
        "copy_tb_s": ceilings.copy_bytes_s / 1e12,
        "matmul_tflop_s": {peak: rate / 1e12 for peak, rate in ceilings.flops_s.items()},
        "sweep_s": round(sweep_s, 1),
        "trials": stats["trials"],
        "rows": rows,
        "sweep": [result.to_dict() for result in report.results],
    }
    if options.out:
        write(options.out, document, sets, merge=options.merge)
    show(rows)
    ratios = [row["ratio_to_best_peer"] for row in rows if row["ratio_to_best_peer"]]
    if ratios:
        print(f"own against the best peer: geometric mean {geometric_mean(ratios):.3f}, worst {min(ratios):.3f}")
    print(f"sweep: {sweep_s:.0f} s, {stats['trials']} trials; all: {time.monotonic() - start:.0f} s")
    return 0 if report.complete else 1


def write(out: Path, document: dict[str, Any], sets: list[TrialSet], *, merge: bool) -> None:
    """Write the document, and its trials beside it; ``merge`` keeps what is there of kernels that were not run."""
    packed = out.with_suffix(".trials.json.gz")
    if merge and out.exists():
        ran = {row["kernel"] for row in document["rows"]}
        before = json.loads(out.read_text())
        for part in ("rows", "sweep"):
            kept = [row for row in before[part] if row["kernel"] not in ran]
            document[part] = [*kept, *document[part]]
        sets = [*(each for each in read_trial_sets(packed) if each.problem.kernel not in ran), *sets]
        document["trials"] = sum(len(each.trials) for each in sets)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=2) + "\n")
    write_trial_sets(packed, sets)


def report_head(report: Report) -> dict[str, Any]:
    """The device, without what tells one board from another of its kind, and the environment."""
    device = report.detected.device
    attributes = {name: value for name, value in device.attributes.items() if name != "uuid"}
    return {"device": device.to_dict() | {"attributes": attributes}, "environment": report.environment.to_dict()}


def compare(found: DetectedDevice, ceilings: Ceilings, result: Result, peers: list[str]) -> dict[str, Any]:
    """One row: everything that can answer this problem, timed interleaved in this process."""
    problem = result.problem
    kernel = get_kernel(problem.kernel)
    cost = kernel.cost(problem)
    bench = Bench(found.device, found.index)
    bench.open(problem, result.max_error, shortest_us(kernel, problem, ceilings))
    opened = bench.opened
    default = kernel.signature.default(problem, found.device)
    configs = {"ours": result.own and result.own.config, "served": result.best and result.best.config}
    configs |= {"default": default, "library": result.library and result.library.config}
    launches: dict[str, Launch] = {name: bench.bind(config) for name, config in configs.items() if config}
    errors: dict[str, float] = {}
    for name in peers:
        launch = peer(kernel, problem, name, "highest" if result.max_error is None else "high")
        try:
            errors[name] = error_of(bench, launch)
        except Exception as error:  # noqa: BLE001 - a peer that does not run here is left out, and named
            print(f"{problem}: {name} does not run: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            continue
        launches[name] = launch
    launches["copy"] = copier(int(cost.bytes), bench)
    samples = bench.interleaved(launches, opened.policy, SECONDS_A_PROBLEM)
    times = {name: median(taken) for name, taken in samples.items() if not isinstance(taken, Failure)}
    peers_us = {name: times[name] for name in errors if name in times}
    best_peer = min(peers_us, key=lambda name: peers_us[name], default=None)
    ours = times.get("ours")
    peak_name = str(configs["ours"].values.get("precision", "")) if configs["ours"] else ""
    peak = ceilings.flops_s.get("tf32" if peak_name == "tf32" else cost.peak)
    return {
        "kernel": problem.kernel,
        "problem": problem.to_dict(),
        "version": result.kernel_version,
        "policy": opened.policy.value,
        "bytes": cost.bytes,
        "flops": cost.flops,
        "implementation": configs["ours"].implementation if configs["ours"] else None,
        "config": configs["ours"].to_dict() if configs["ours"] else None,
        "served_config": configs["served"].to_dict() if configs["served"] else None,
        "ours_us": ours,
        "served_us": times.get("served"),
        "default_us": times.get("default"),
        "library_us": times.get("library"),
        "copy_us": times.get("copy"),
        "peers_us": peers_us,
        "ratio_to_best_peer": peers_us[best_peer] / ours if best_peer and ours else None,
        "share_of_copy": times["copy"] / ours if ours and "copy" in times else None,
        "share_of_peak": cost.flops / peak / (ours * 1e-6) if ours and peak else None,
        "share_of_large_copy": cost.bytes / ceilings.copy_bytes_s / (ours * 1e-6) if ours else None,
        "error": result.own.measurement.error if result.own else None,
        "peer_error": errors.get(best_peer) if best_peer else None,
        "samples": {name: len(taken) for name, taken in samples.items() if not isinstance(taken, Failure)},
    }


def peer(kernel: Kernel, problem: Any, name: str, precision: str) -> Launch:
    """The unfused chain as it is, or compiled; it allocates its own result, as it does for its users.

    Where the problem bears an error, its float32 products run in tf32, as a user who bears it would have them.
    """

    def chain(operands: Tensors) -> dict[str, torch.Tensor]:
        return kernel.eager(problem, operands)

    run: Callable[[Tensors], dict[str, torch.Tensor]] = chain
    if name != "eager":
        torch._dynamo.reset()
        run = torch.compile(chain, mode=MODES[name], dynamic=False)

    def launch(operands: Tensors, outputs: Tensors) -> None:
        torch.set_float32_matmul_precision(precision)
        with torch.no_grad():
            launch.result = run(dict(operands))
        torch.set_float32_matmul_precision("highest")

    return launch


def error_of(bench: Bench, launch: Any) -> float:
    """The larger relative L2 error against float64 over the input sets; runs the peer, so it compiles here."""
    worst = 0.0
    for made in bench.opened.inputs:
        launch(made.operands, bench.opened.outputs.tensors)
        for name, standard in made.standards.items():
            worst = max(worst, standard.error(launch.result[name]))
    launch.result = None
    return worst


def copier(moved_bytes: int, bench: Bench) -> Launch:
    """A device copy that reads and writes ``moved_bytes`` together."""
    device = bench.opened.outputs.device
    pairs = [
        tuple(torch.randint(0, 255, (moved_bytes // 2,), dtype=torch.uint8, device=device) for _ in range(2))
        for _ in range(4)
    ]
    turn = 0

    def launch(operands: Tensors, outputs: Tensors) -> None:
        nonlocal turn
        source, target = pairs[turn % len(pairs)]
        turn += 1
        target.copy_(source)

    return launch


def show(rows: list[dict[str, Any]]) -> None:
    columns = [
        "<kernel",
        "<problem",
        "ours",
        "served",
        "default",
        "library",
        "copy",
        "eager",
        "compile",
        "max_autotune",
    ]
    cells = []
    for row in rows:
        dims = "x".join(str(size) for name, size in row["problem"]["dims"].items() if name != "batch" or size > 1)
        times = [row[f"{name}_us"] for name in ("ours", "served", "default", "library", "copy")]
        times += [row["peers_us"].get(name) for name in ("eager", "compile", "max_autotune")]
        ratio = f"{row['ratio_to_best_peer']:.2f}" if row["ratio_to_best_peer"] else "-"
        copy = f"{row['share_of_copy']:.0%}" if row["share_of_copy"] else "-"
        peak = f"{row['share_of_peak']:.0%}" if row["share_of_peak"] else "-"
        kind = next(iter(row["problem"]["dtypes"].values()))
        cells.append(
            [row["kernel"], f"{dims} {kind}", *map(microseconds, times), ratio, copy, peak, row["implementation"]]
        )
    print_table([*columns, "ratio", "of copy", "of peak", "<own"], cells)
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
