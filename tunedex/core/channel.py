"""What a revision is offered as."""

from __future__ import annotations

from enum import StrEnum

from tunedex.core.errors import BadInput


class Channel(StrEnum):
    """``candidate`` points to what sweeps published, ``stable`` to what clients read."""

    CANDIDATE = "candidate"
    STABLE = "stable"


def check_channel(name: str) -> Channel:
    """The channel of that name.

    Raises:
        BadInput: there is no such channel.
    """
    if name not in list(Channel):
        raise BadInput(f"channel {name!r} is unknown; known are {', '.join(Channel)}", field="channel")
    return Channel(name)
