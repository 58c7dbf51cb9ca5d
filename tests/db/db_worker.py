"""What the tests run as processes of their own: ``db_worker.py URL open|write|poll [NUMBER]``."""

from __future__ import annotations

import sys
import time

from db_examples import DEVICE, ENVIRONMENT, VERSION, fill, problem, row, trial

from tunedex.db import open_store


def main(url: str, task: str, number: int = 0) -> None:
    if task == "open":
        # All begin at the same time, given in milliseconds.
        time.sleep(max(0.0, number / 1000 - time.time()))
        with open_store(url) as store:
            fill(store)
            tell(store.add_trial(trial()))
        return
    with open_store(url) as store:
        if task == "write":
            for count in range(number):
                tell(store.add_trial(trial(count)))
                if count % 50 == 0:
                    store.publish(DEVICE.key, {problem(): [row(count + 1)]})
        elif task == "poll":
            deadline = time.monotonic() + number
            while time.monotonic() < deadline:
                store.trials_of(problem().key, device=DEVICE.key, environment=ENVIRONMENT.key, kernel_version=VERSION)
                store.snapshot(DEVICE.key)
                tell(store.counts()["trials"])


def tell(value: int) -> None:
    sys.stdout.write(f"{value}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
