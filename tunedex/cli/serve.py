"""`tuner serve`: answer over HTTP, and show the dashboard."""

from __future__ import annotations

import errno
import signal
import socket
from typing import TYPE_CHECKING, Annotated

import typer

from tunedex.cli.output import DbOption, say, whole
from tunedex.core.errors import BadInput, CannotRun

if TYPE_CHECKING:
    from fastapi import FastAPI

#: Seconds that a request in progress has to end after the server is asked to stop.
GRACE_S = 10


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("serve")(serve)


def serve(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", parser=whole, help="The port to listen on; 0 takes any that is free.")
    ] = 8421,
    db: DbOption = None,
) -> None:
    """Answer lookups over HTTP and show what is best on each device, until interrupted."""
    listener = _listen(host, port)
    try:
        from tunedex.api import create_app
        from tunedex.db import absent_file, open_store

        absent = absent_file(db)
        # Opened once before, so that a database that cannot be is one line and not a server that fails to start.
        with open_store(db) as store:
            database = f"{store.url}, which was not there: an empty one is made" if absent else store.url
        _run(create_app(db), listener, database)
    finally:
        listener.close()


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket.

    Raises:
        BadInput: there is no such address or port.
        CannotRun: the port is taken, or is for the administrator alone.
    """
    if not 0 <= port <= 65535:
        raise BadInput(f"--port {port} is not from 0 to 65535", field="port")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise BadInput(f"--host {host!r} is no address of this machine: {error}", field="host") from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # A server that was just stopped leaves its port in TIME_WAIT; one that still runs keeps it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise BadInput(f"--host {host!r} is no address of this machine", field="host") from error
        if error.errno == errno.EADDRINUSE:
            raise CannotRun(f"port {port} on {host} is taken; choose another with --port") from error
        raise CannotRun(f"port {port} on {host} cannot be listened on: {error.strerror}") from error
    return listener


def _run(app: FastAPI, listener: socket.socket, database: str) -> None:
    """Serve until SIGINT or SIGTERM, then let requests in progress end."""
    import uvicorn

    from tunedex.api.routes.misses import is_loopback

    address, port = listener.getsockname()[:2]
    shown = f"[{address}]" if ":" in address else address
    if not is_loopback(address):
        say(
            f"tuner: warning: {shown} is not the loopback address: whoever reaches it reads everything; "
            "nobody elsewhere writes, so POST /v1/misses is taken from this host alone"
        )

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                base = f"http://{shown}:{port}"
                say(f"Tunedex answers at {base} from {database}; docs at {base}/docs; Ctrl-C stops it")

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        ws="none",
        lifespan="on",
    )
    # uvicorn raises the signal again when it has shut down; stopping a server that way is its normal end.
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server = Server(config)
        server.run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if not server.started:
        raise CannotRun("the server did not start; the lines above say why")
