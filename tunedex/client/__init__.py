"""What runs inside somebody else's process: a snapshot, its refresh, the misses to report.

Needs the standard library, and httpx once it connects to a server. `Client` is made by `tunedex.connect`.
"""

from tunedex.client.client import Client, Status
from tunedex.client.device import this_device

__all__ = ["Client", "Status", "this_device"]
