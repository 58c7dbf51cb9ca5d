"""Every number that steers the tuner, with its unit in its name."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Timing:
    """How a config is timed.

    While searching, samples are taken until the median is known: until half the width of its interval of ``confidence``
    is at most ``target_share`` of it. At least ``min_samples`` are taken and at
    most ``max_samples``, and beyond the least for no longer than ``most_s``. The clearly slow are left earlier: after
    two samples what is ``give_up_factor`` times slower than the best so far, and as soon as the interval exists what
    lies with all of it more than ``lag_share`` behind.
    """

    confidence: float = 0.95
    target_share: float = 0.01
    min_samples: int = 7
    max_samples: int = 200
    most_s: float = 0.25
    give_up_factor: float = 3.0
    lag_share: float = 0.1
    #: How long the device is kept busy before the first config of a problem, and, where it has been idle for so long
    #: that its clocks sink, before the next one.
    warm_up_s: float = 0.3
    idle_s: float = 1.0
    rewarm_s: float = 0.05
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
    #: Times that are shorter than this share of what the measured ceilings allow are not physical: with a cold cache,
    #: and with a warm one whose rate is unknown, for caches are some tens of times faster than the memory that the
    #: ceilings are of. No call at all takes less than ``least_us``, some tens of clock cycles.
    physical_share: float = 0.3
    physical_warm_share: float = 0.02
    least_us: float = 0.01
    #: Energy is measured of so many leaders of a final, over calls one after the other for so long each: the counter
    #: moves every 20 to 100 ms.
    energy_leaders: int = 2
    energy_s: float = 1.0


@dataclass(frozen=True)
class Verifying:
    """How results are compared with their references: so many elements at once, that what lies between the steps
    stays in the cache, and on a CPU in one thread, whose pace does not hang on what the other cores do; and where
    float64 is slow, how much of a result it sees, in elements and in rows."""

    chunk_elements_cuda: int = 2**22
    chunk_elements_cpu: int = 2**15
    sampled_elements: int = 4096
    sampled_rows: int = 16


@dataclass(frozen=True)
class Finals:
    """The interleaved final.

    Timed are at least ``leaders`` of the fastest configs, and up to ``most_leaders`` whose time lies within
    ``lead_share`` of the best: what lies closer than searching can tell apart; up to ``most_leaders_compiled`` where
    each is compiled again in the final's process. So are the ``quiet_leaders`` by the low quantile and the
    ``lossy_leaders`` among configs that are not lossless.

    The device works for ``warm_up_s`` first. Rounds go on for ``seconds`` (those with a warm cache, which decide
    nothing, for ``warm_share`` of that), at least ``min_rounds`` and at most
    ``rounds``, or until it is settled that none of the others is faster than the leader by more than
    ``settled_share``. What is surely slower by more than ``behind_share`` is left out before that. This is looked at
    after ``min_rounds``, twice as many, and so on, with ``confidence`` of each look.

    A final that other work disturbs, or clocks that vary by more than ``steady_clock_share``, is taken up to
    ``repeats`` times more.
    """

    leaders: int = 5
    most_leaders: int = 16
    most_leaders_compiled: int = 8
    lead_share: float = 0.08
    quiet_leaders: int = 3
    lossy_leaders: int = 2
    warm_up_s: float = 1.0
    seconds: float = 4.0
    warm_share: float = 0.25
    min_rounds: int = 9
    rounds: int = 250
    confidence: float = 0.99
    settled_share: float = 0.005
    behind_share: float = 0.05
    repeats: int = 2
    steady_clock_share: float = 0.05


@dataclass(frozen=True)
class Searching:
    """How configs are proposed.

    First come the default, the library call and the ``winners`` first of what is published. A sampler of Optuna's is
    passed over for a random config after ``most_wasted`` proposals in a row that were repeats or no configs. An
    implementation with more than ``most_configs`` is refused: its constraints have to say more.
    """

    winners: int = 8
    most_wasted: int = 20
    most_configs: int = 20_000_000


@dataclass(frozen=True)
class Surrogate:
    """How the sampler `auto` proposes, in logarithms of times.

    The first ``first_points`` lie far apart: each is the farthest from the others of ``drawn_points`` at random; with
    hints, the first ``hinted_points`` are those that are best by them. Times more than ``clip`` above the best count as
    that. The process is fitted again after at most ``fit_every`` trials, in ``fit_steps`` steps, to at most
    ``most_fitted`` of them; that of a hint to its ``hint_fitted`` best. In a space of more than ``most_points`` it
    looks at so many and at the neighbours of the ``leaders`` best. A length scale is in units of a parameter's whole
    range: one to begin with, and the median and the deviation of the logarithm that are expected of it. The noise is a
    share of the variance, which is ``least_variance`` at least. A sweep ends where ``patience`` proposals in a row are
    each expected to improve by less than ``least_gain``.
    """

    first_points: int = 8
    drawn_points: int = 64
    hinted_points: int = 8
    clip: float = 1.0
    fit_every: int = 8
    fit_steps: int = 30
    most_fitted: int = 400
    hint_fitted: int = 200
    most_points: int = 20_000
    leaders: int = 5
    first_length: float = 0.5
    usual_length: float = 0.7
    length_spread: float = 0.8
    length_bounds: tuple[float, float] = (0.05, 20.0)
    usual_noise: float = 0.01
    noise_spread: float = 1.5
    noise_bounds: tuple[float, float] = (1e-4, 0.5)
    least_variance: float = 1e-6
    patience: int = 24
    least_gain: float = 0.001


@dataclass(frozen=True)
class Sourcing:
    """What of the kernel's other trials a search starts from: the ``most`` nearest problems, devices and environments,
    up to ``most_doublings`` away. Each thing that a problem may not differ in for a near answer, such as a dtype,
    counts as ``unlike_doublings``. What is ``halving_doublings`` farther away counts half as much.
    """

    most: int = 8
    most_doublings: float = 6.0
    unlike_doublings: float = 2.0
    halving_doublings: float = 1.0


@dataclass(frozen=True)
class Budgeting:
    """How a budget is kept.

    A final takes ``beside_final_s`` beside its timing, until some have shown what it is, and times for at least
    ``least_final_s``. A trial that a sweep must have gets at least ``least_trial_s`` seconds, however little is left;
    any other may overdraw the time for searching by ``overdraw_share`` of the budget before it is cut.
    """

    beside_final_s: float = 6.0
    least_final_s: float = 0.5
    least_trial_s: float = 20.0
    overdraw_share: float = 0.03


@dataclass(frozen=True)
class Timeouts:
    """How long a child process may take before it is killed, in seconds.

    ``heartbeat_s`` bounds the silence within a call. Imports and compilers keep Python's lock, and so a healthy
    child's heart from beating, for some tenths of a second; a cold disk or a machine that swaps for many times that.
    ``final_s`` is beside ``final_calls`` calls of each finalist: two least numbers of rounds, cold and warm, each taken
    twice, with what leads up to them.
    """

    start_s: float = 120.0
    open_s: float = 180.0
    compile_s: float = 90.0
    trial_s: float = 60.0
    final_s: float = 240.0
    final_calls: int = 40
    ceilings_s: float = 120.0
    heartbeat_s: float = 20.0

    def for_trials(self, seconds: float) -> Timeouts:
        """These, with ``seconds`` for compiling a config and as many for measuring it."""
        return replace(self, compile_s=seconds, trial_s=seconds)

    @property
    def of_trials(self) -> dict[str, float]:
        """Those that end a config, as the options of a sweep hold them."""
        return {"compile_s": self.compile_s, "trial_s": self.trial_s}


@dataclass(frozen=True)
class Worker:
    """What is watched of a child process.

    It beats every ``beat_s``, and as often its parent looks at it. The last ``tail_bytes`` of its output are kept, and
    the first ``message_characters`` of what was raised in it. Above ``memory_share`` of the machine's memory it is
    killed, which takes at most ``kill_s``. One that measures is started again after each of ``start_pauses_s`` where it
    could not be, and gives way to another after ``most_configs``, whose programs nothing unloads.
    """

    beat_s: float = 0.5
    tail_bytes: int = 4_000
    message_characters: int = 500
    memory_share: float = 0.85
    kill_s: float = 10.0
    start_pauses_s: tuple[float, ...] = (2.0, 20.0)
    most_configs: int = 1000


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
class Replaying:
    """How a search is replayed on a recording, and what is told of it.

    The loss is told after each of ``budgets`` trials; near the optimum is what is at most ``near_share`` slower. A
    sampler's results are told after every ``batch`` proposals.
    """

    budgets: tuple[int, ...] = (10, 20, 50, 100, 200)
    trials: int = 200
    seeds: int = 20
    near_share: float = 0.05
    batch: int = 1


@dataclass(frozen=True)
class Settings:
    timing: Timing = Timing()
    verifying: Verifying = Verifying()
    finals: Finals = Finals()
    searching: Searching = Searching()
    surrogate: Surrogate = Surrogate()
    sourcing: Sourcing = Sourcing()
    budgeting: Budgeting = Budgeting()
    timeouts: Timeouts = Timeouts()
    worker: Worker = Worker()
    recheck: Recheck = Recheck()
    selftest: SelfTest = SelfTest()
    watching: Watching = Watching()
    profiling: Profiling = Profiling()
    replaying: Replaying = Replaying()
    #: Seed of the inputs: the same for every sweep, so that output hashes and errors can be compared.
    input_seed: int = 0
    #: For how long what a sweep reads and writes is tried again while its database is away, in a restart for instance.
    store_patience_s: float = 600.0
    #: How often who waits for a compiled config, or for a sweep's threads, sees whether it was stopped, in seconds.
    stop_poll_s: float = 0.2
    #: Configs compiled ahead of the measuring.
    window: int = 16
    #: Memory that is free before one more config is compiled, and memory at which a compiling process is killed.
    compiler_bytes: int = 2 * 2**30
    compiler_limit_bytes: int = 8 * 2**30
    #: A compiling process that holds more, or has compiled so many configs, is replaced before the next: what compilers
    #: keep would be laid on a config that needs little.
    compiler_renewed_bytes: int = 2 * 2**30
    compiler_renewed_configs: int = 500
    #: How often a compilation that waits for memory looks again, and how long one takes to reach its full size.
    memory_poll_s: float = 0.5
    memory_settles_s: float = 10.0
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
