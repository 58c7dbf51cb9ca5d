"""The exceptions that Tunedex raises on purpose.

    TunedexError
    ├── BadInput            the caller's words are wrong          exit 2, HTTP 422
    │   ├── UnknownKernel   no kernel of that name                exit 2, HTTP 404
    │   ├── UnknownDevice   no device of that key                 exit 2, HTTP 404
    │   ├── UnknownRevision no published revision of that number  exit 2, HTTP 404
    │   └── UnknownSweep    no sweep of that number               exit 2, HTTP 404
    └── CannotRun           the request is right, the machine or the database is not
        ├── MissingExtra    a package of an extra is not installed          exit 2
        ├── DatabaseError   the database cannot be opened, read or written  exit 2, HTTP 503
        │   └── DamagedDatabase what it holds is not what Tunedex writes    exit 2, HTTP 503
        └── DeviceError     a driver or a device does not answer            exit 2

A message is one line that says what is wrong, where, and what would be right.
"""

from __future__ import annotations


class TunedexError(Exception):
    """The root: catching it catches everything Tunedex raises on purpose."""


class BadInput(TunedexError):
    """What was asked is wrong; the message says what would be right."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class UnknownKernel(BadInput):
    """There is no kernel of that name."""


class UnknownDevice(BadInput):
    """There is no device of that key."""


class UnknownRevision(BadInput):
    """There is no published revision of that number."""


class UnknownSweep(BadInput):
    """There is no sweep of that number."""


class CannotRun(TunedexError):
    """The request is right, but this machine or this database cannot serve it now."""


class MissingExtra(CannotRun):
    """A package that belongs to an extra is not installed."""


class DatabaseError(CannotRun):
    """The database cannot be opened, read or written."""


class DamagedDatabase(DatabaseError):
    """The database holds what Tunedex does not write: a row that cannot be read, or a version that is none."""


class DeviceError(CannotRun):
    """A driver or a device does not answer as it should."""
