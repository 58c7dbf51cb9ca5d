"""What runs inside somebody else's process: a snapshot, its refresh, the misses to report."""
