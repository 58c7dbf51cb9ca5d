"""Every number that steers the tuner, with its unit in its name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """How long a config is timed.

    While searching, samples are taken until both ``min_samples`` and ``search_s`` are reached, at most
    ``max_samples``; a config ``give_up_factor`` times slower than the best so far is left after two.
    """

    min_samples: int = 7
    max_samples: int = 200
    search_s: float = 0.05
    give_up_factor: float = 3.0
    warm_up_s: float = 0.3
    #: How long one replay of a CUDA graph should be, to be long against its own overhead, and its most launches.
    graph_us: float = 2_000.0
    graph_max_launches: int = 64
    #: Caches that cold calls rotate over or overwrite, and the cache assumed where a device tells none or a small one.
    caches_rotated: int = 3
    least_cache_bytes: int = 32 * 2**20
    #: Before a call that is timed alone the device is kept busy for this many times the host's launch, plus once.
    launches_covered: float = 3.0
    #: Problems whose floor is shorter are timed in a CUDA graph: launching them one by one may time the host, and
    #: making a launch's arguments takes up to some hundred microseconds.
    graph_below_us: float = 2_000.0
    #: Times shorter than this share of the floor at the measured ceilings are not physical.
    physical_share: float = 0.3


@dataclass(frozen=True)
class Finals:
    """The interleaved final: how many leaders (by median, by the low quantile, of the lossy ones), how many rounds,
    and the longest it takes."""

    leaders: int = 5
    quiet_leaders: int = 3
    lossy_leaders: int = 2
    rounds: int = 30
    min_rounds: int = 9
    seconds: float = 4.0


@dataclass(frozen=True)
class Timeouts:
    """How long a child process may take before it is killed, in seconds."""

    start_s: float = 120.0
    open_s: float = 180.0
    compile_s: float = 90.0
    trial_s: float = 60.0
    final_s: float = 240.0
    ceilings_s: float = 120.0


@dataclass(frozen=True)
class Profiling:
    """How much of a program is kept while it is profiled.

    What was seen is written every ``write_every_s``, and less often where writing would take more than
    ``write_share`` of the time.
    """

    write_every_s: float = 0.2
    write_share: float = 0.02
    #: Different operators (by name, shapes, dtypes, device) and chains that are told apart; more are counted together.
    kinds: int = 20_000
    #: Results between two steps of a chain that a thread remembers.
    values: int = 128
    #: Calls of one kind that are timed on a CUDA device; the others are taken to last as long.
    timed_calls: int = 100
    #: Operators without a kernel that are reported.
    reported: int = 10


@dataclass(frozen=True)
class Settings:
    timing: Timing = Timing()
    finals: Finals = Finals()
    timeouts: Timeouts = Timeouts()
    profiling: Profiling = Profiling()
    #: Seed of the inputs: the same for every sweep, so that output hashes and errors can be compared.
    input_seed: int = 0
    #: Configs compiled ahead of the measuring.
    window: int = 16
    #: Memory that one compiling process may need.
    compiler_bytes: int = 2 * 2**30
    #: Asks that give nothing new before a random unseen config is taken.
    stale_asks: int = 20
    #: A failed config counts as this much slower than the slowest that ran.
    failure_penalty: float = 2.0
    #: Batches that ``batch=auto`` may propose, while operands and outputs fit this share of the device's memory.
    batches: tuple[int, ...] = (1, 2, 4, 8, 16)
    batch_memory_share: float = 1 / 8
    #: Elements before and after each output that no config may write.
    guard_elements: int = 1024
    #: Runs of a copy or a product of which the best is the ceiling.
    ceiling_repeats: int = 15


SETTINGS = Settings()
