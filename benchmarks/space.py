"""How long does a space take to open, and a search of it to begin? A made-up kernel of two million configs.

    python benchmarks/space.py --out benchmarks/results/cpu/space.json

Ten tunables with constraints on two and three of them, which leave two thirds of their product. Prints the
seconds, the least of some runs, of `Space.of`, of a `Search` of it, and of its first sixteen proposals. Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tunedex.cli.output import print_table
from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.host import cpu
from tunedex.core.problem import Problem
from tunedex.kernels.base import Constraint, Implementation, Launch, Tunable
from tunedex.kernels.registry import get_kernel
from tunedex.tuner.devices import detect, environment_of
from tunedex.tuner.search.samplers import Sampler
from tunedex.tuner.search.search import Search
from tunedex.tuner.space import Space

REPEATS = 5
AT_ONCE = 16

T = TypeVar("T")


class Large(Implementation):
    """Powers of two, and products of them that may not be too large."""

    name = "numba"
    kinds = frozenset({"cpu"})

    def tunables(self, problem: Problem, device: Device) -> Sequence[Tunable]:
        sizes = tuple(2**n for n in range(6))
        named = [Tunable(f"size_{n}", sizes, "a size") for n in range(5)]
        few = [Tunable(f"few_{n}", (1, 2, 3), "a choice of few") for n in range(4)]
        return (*named, *few, Tunable("order", ("rows", "cols", "tiles", "rings", "waves"), "an order"))

    def constraints(self, problem: Problem, device: Device) -> Sequence[Constraint]:
        return (
            Constraint("size_0 * size_1 <= 256", lambda v: int(v["size_0"]) * int(v["size_1"]) <= 256),
            Constraint("size_2 * size_3 * size_4 <= 512", lambda v: v["size_2"] * v["size_3"] * v["size_4"] <= 512),  # type: ignore[operator]
        )

    def bind(self, problem: Problem, config: Config, device: Device) -> Launch:
        raise NotImplementedError


def least(work: Callable[[], T]) -> tuple[float, T]:
    """The least seconds of some runs, and what the last gave."""
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        found = work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds), found


def measure() -> dict[str, Any]:
    kernel = type(get_kernel("softmax"))()
    kernel.implementations = (Large(),)  # type: ignore[misc]
    problem = kernel.signature.problem({"rows": 64, "cols": 64, "dtype": "float32"})
    open_s, space = least(lambda: Space.of(kernel, problem, cpu()))
    search_s, search = least(lambda: Search([space], sampler=Sampler.AUTO, trials=200, seed=0))
    ask_s, _ = least(lambda: search.ask(AT_ONCE))
    return {"configs": space.size, "open_s": open_s, "search_s": search_s, "ask_s": ask_s, "asked": AT_ONCE}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the JSON document goes")
    options = parser.parse_args()
    device = detect("cpu")[0].device
    found = measure()
    document = {
        "device": device.to_dict(),
        "environment": environment_of(device).to_dict(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        **found,
    }
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(document, indent=2) + "\n")
    print_table(
        ["configs", "space", "search", f"{AT_ONCE} proposals"],
        [[found["configs"], *(f"{found[name]:.2f} s" for name in ("open_s", "search_s", "ask_s"))]],
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
