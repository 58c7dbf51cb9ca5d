"""The tasks of a sweep, for one or several devices to take from."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tunedex.tuner.budget import Due
from tunedex.tuner.tasks import Task


class TaskQueue:
    """Hands out tasks in their order: whoever is free takes the next. Safe over threads.

    Two tasks that share a problem are never at work at once, for each would repeat the other's trials.
    """

    def __init__(self, tasks: Sequence[Task], devices: int) -> None:
        self._waiting = list(dict.fromkeys(tasks))
        self._devices = devices
        self._at_work: list[Task] = []
        self._finals = {task: len(task.problems) for task in self._waiting}
        self._changed = threading.Condition()
        self._stopped = False

    def take(self) -> Task | None:
        """The next task, waited for where those left share problems with tasks at work, or may come back; None where
        there is no more to do."""
        with self._changed:
            while not self._stopped:
                task = next((task for task in self._waiting if self._apart(task)), None)
                if task is not None:
                    return self._taken(task)
                if not self._waiting and not self._at_work:
                    return None
                self._changed.wait()
            return None

    def take_ahead(self) -> Task | None:
        """The next task for one who is still at work; None where that would leave somebody else without."""
        with self._changed:
            task = next((task for task in self._waiting if self._apart(task)), None)
            if task is None or self._stopped or len(self._waiting) < self._devices:
                return None
            return self._taken(task)

    def concluded(self, task: Task) -> None:
        """One final of ``task`` is done."""
        with self._changed:
            self._finals[task] -= 1

    def done(self, task: Task) -> None:
        """``task`` is no longer at work."""
        with self._changed:
            self._at_work.remove(task)
            del self._finals[task]
            self._changed.notify_all()

    def give_back(self, task: Task) -> None:
        """``task`` was not finished, and somebody else may."""
        with self._changed:
            self._at_work.remove(task)
            self._waiting.insert(0, task)
            self._finals[task] = len(task.problems)
            self._changed.notify_all()

    def leave(self) -> None:
        """One device fewer takes tasks."""
        with self._changed:
            self._devices -= 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Hand out no more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    @property
    def due(self) -> Due:
        """What is still to do, tasks at work included."""
        with self._changed:
            return Due(tasks=max(1, len(self._finals)), finals=max(1, sum(self._finals.values())))

    @property
    def left(self) -> int:
        """How many tasks are not done."""
        with self._changed:
            return len(self._finals)

    def _apart(self, task: Task) -> bool:
        keys = {problem.key for problem in task.problems}
        return all(keys.isdisjoint(problem.key for problem in other.problems) for other in self._at_work)

    def _taken(self, task: Task) -> Task:
        self._waiting.remove(task)
        self._at_work.append(task)
        return task
