"""Work split over CUDA streams: a fork from the current stream, and a join back into it.

Only events order the streams, so the whole can be captured in a CUDA graph, where it becomes parallel branches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def parts(count: int, streams: int) -> tuple[range, ...]:
    """``range(count)`` cut into at most ``streams`` runs whose lengths differ by at most one."""
    streams = min(streams, count)
    bounds = [count * i // streams for i in range(streams + 1)]
    return tuple(range(low, high) for low, high in pairwise(bounds))


def fork_join(device: torch.device, work: Sequence[Callable[[], None]]) -> None:
    """Run each of ``work`` once: the first on the current stream of ``device``, the others each on a side stream.

    All begin after what the current stream holds now; what it is given next begins after all of them.
    """
    import torch

    if len(work) == 1:
        work[0]()
        return
    current = torch.cuda.current_stream(device)
    sides = side_streams(device.index if device.index is not None else torch.cuda.current_device(), len(work) - 1)
    begin = torch.cuda.Event()
    begin.record(current)
    for stream, task in zip(sides, work[1:], strict=True):
        stream.wait_event(begin)
        with torch.cuda.stream(stream):
            task()
    work[0]()
    for stream in sides:
        current.wait_stream(stream)


def side_streams(index: int, count: int) -> tuple[torch.cuda.Stream, ...]:
    """``count`` side streams of the device of that index, always the same ones."""
    return tuple(_side_stream(index, number) for number in range(count))


@cache
def _side_stream(index: int, number: int) -> torch.cuda.Stream:
    import torch

    return torch.cuda.Stream(torch.device("cuda", index))
