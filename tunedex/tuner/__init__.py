"""Finds the best: device detection, compile pool, worker process, measuring, verifying, search, sweep."""
