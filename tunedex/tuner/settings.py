"""Every number that steers the tuner, with its unit in its name."""

from __future__ import annotations

from dataclasses import dataclass, replace


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
    #: Times shorter than this share of the floor at the measured ceilings are not physical: with a cold cache, and
    #: with a warm one, for caches are some tens of times faster than the memory that the ceilings are of.
    physical_share: float = 0.3
    physical_warm_share: float = 0.02


@dataclass(frozen=True)
class Finals:
    """The interleaved final: how many leaders (by median, by the low quantile, of the lossy ones), how many rounds,
    and the longest it takes. ``warm_up_s`` of work precede it; ``expected_s`` is what one is taken to cost, with its
    fresh process, until one has been seen."""

    leaders: int = 5
    quiet_leaders: int = 3
    lossy_leaders: int = 2
    rounds: int = 30
    min_rounds: int = 9
    seconds: float = 4.0
    warm_up_s: float = 1.0
    expected_s: float = 12.0


@dataclass(frozen=True)
class Timeouts:
    """How long a child process may take before it is killed, in seconds.

    ``heartbeat_s`` bounds the silence within a call. Imports and compilers keep Python's lock, and so a healthy
    child's heart from beating, for some tenths of a second; a cold disk or a machine that swaps for many times that.
    """

    start_s: float = 120.0
    open_s: float = 180.0
    compile_s: float = 90.0
    trial_s: float = 60.0
    final_s: float = 240.0
    ceilings_s: float = 120.0
    heartbeat_s: float = 20.0

    def for_trials(self, seconds: float) -> Timeouts:
        """These, with ``seconds`` for compiling a config and as many for measuring it."""
        return replace(self, compile_s=seconds, trial_s=seconds)


@dataclass(frozen=True)
class Worker:
    """What is watched of a child process.

    It beats every ``beat_s``, and as often its parent looks at it. The last ``tail_bytes`` of its output are kept.
    Above ``memory_share`` of the machine's memory it is killed, which takes at most ``kill_s``.
    """

    beat_s: float = 0.5
    tail_bytes: int = 4_000
    memory_share: float = 0.85
    kill_s: float = 10.0


@dataclass(frozen=True)
class Recheck:
    """`tuner verify`: how many rows after the best are timed again first, by rank."""

    runners_up: int = 7


@dataclass(frozen=True)
class SelfTest:
    """`tuner selftest`: how long it takes at most, how much of that is kept for its sweep, and what its checks bear.

    ``repeat_share`` is how far apart two medians of one copy may lie, on a device that has no other work, and
    ``agree_share`` two clocks' times of one copy; ``warm_share`` is how much slower a warm cache may seem.
    """

    budget_s: float = 270.0
    sweep_s: float = 75.0
    sweep_trials: int = 6
    samples: int = 30
    cuda_copy_bytes: int = 2**28
    cpu_copy_bytes: int = 2**24
    repeat_share: float = 0.05
    cpu_repeat_share: float = 0.5
    agree_share: float = 0.1
    warm_share: float = 0.05


@dataclass(frozen=True)
class Watching:
    """What is read of a device beside the measurements.

    Somebody else's load is looked for at most every ``load_every_s``: on a GPU in the last ``load_window_s``, since its
    driver averages over up to a second, where a process counts from ``load_gpu_percent`` of the SMs on, since a display
    server takes a few; on a CPU since the last look, where ``load_cpu_share`` of the cores' time counts, since the
    system itself takes some.
    """

    load_every_s: float = 0.5
    load_window_s: float = 1.0
    load_gpu_percent: int = 10
    load_cpu_share: float = 0.1


@dataclass(frozen=True)
class Settings:
    timing: Timing = Timing()
    finals: Finals = Finals()
    timeouts: Timeouts = Timeouts()
    worker: Worker = Worker()
    recheck: Recheck = Recheck()
    selftest: SelfTest = SelfTest()
    watching: Watching = Watching()
    #: Seed of the inputs: the same for every sweep, so that output hashes and errors can be compared.
    input_seed: int = 0
    #: Configs compiled ahead of the measuring.
    window: int = 16
    #: Memory that is free before one more config is compiled, and memory at which a compiling process is killed.
    compiler_bytes: int = 2 * 2**30
    compiler_limit_bytes: int = 8 * 2**30
    #: How often a compilation that waits for memory looks again, and how long one takes to reach its full size.
    memory_poll_s: float = 0.5
    memory_settles_s: float = 10.0
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
