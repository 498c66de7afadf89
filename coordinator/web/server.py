"""A web server in a thread of this process: TLS with a host's certificate, or plain on the loopback.

What it answers is an ASGI application's. Whoever says nothing, a letter at a time, or does not read, is cut off; no
path is logged, since paths hold tickets.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import ssl
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from coordinator.web.connections import Listener
from edge.contracts.errors import BrokerUnreachable

REQUEST_TIMEOUT_S = 15.0
"""For TLS to be agreed on, for a request's head to arrive, and for the next request of a connection."""
STALL_TIMEOUT_S = 30.0
"""For a client to read the 64 KB that are under way to it."""
MAX_CONNECTIONS = 512
MAX_HEAD_BYTES = 16_384
START_TIMEOUT_S = 10.0


class WebServer:
    """Serves ``app`` while its context is open.

    Args:
        url: ``https://host:port`` as phones reach it, port 0 for any. On a loopback name it listens there only, else
            everywhere.
        certificate, key: PEM files for that host; None for ``http://``, which is for a loopback name alone.
        what, hint: for the message when the port is taken.
        connections_of_an_address: of ``max_connections``, kept for each while there is no room; 0: a quarter.

    Attributes:
        address: ``url`` with the port that was found.

    Raises:
        BrokerUnreachable: nobody can listen there.
    """

    def __init__(
        self,
        url: str,
        app: ASGIApp,
        certificate: Path | None = None,
        key: Path | None = None,
        *,
        what: str = "the page",
        hint: str = "free the port, or change $.broker.web",
        max_connections: int = MAX_CONNECTIONS,
        connections_of_an_address: int = 0,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        stall_timeout_s: float = STALL_TIMEOUT_S,
    ) -> None:
        parts = urlsplit(url)
        host = parts.hostname or ""
        try:
            self._tls = None if certificate is None or key is None else _server_tls(certificate, key)
            self._socket = Listener(host, parts.port or 0, max_connections, connections_of_an_address)
        except (OSError, ValueError) as error:
            raise BrokerUnreachable(f"{what} cannot be served at {url}: {error}", hint=hint) from error
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{parts.scheme}://{shown}:{self._socket.getsockname()[1]}"
        self._request_timeout_s = request_timeout_s

        listener = self._socket

        class Connection(_Connection):
            among = listener
            head_timeout_s = request_timeout_s
            read_timeout_s = stall_timeout_s

        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=math.ceil(request_timeout_s),
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        # Of strangers' requests; it also tells of every start and stop, which the run does in its own words.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        config.load()
        config.ssl = self._tls
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="web", daemon=True)
        self._url, self._hint = url, hint

    def __enter__(self) -> WebServer:
        self._thread.start()
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > give_up_at:
                raise BrokerUnreachable(f"the web server at {self._url} did not start", hint=self._hint)
            time.sleep(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(5.0)
        self._socket.close()

    def _serve(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._serve_here())

    async def _serve_here(self) -> None:
        if self._tls is not None:
            # Who says nothing would else be waited for a minute before a request of theirs is.
            loop: Any = asyncio.get_running_loop()
            loop.create_server = functools.partial(loop.create_server, ssl_handshake_timeout=self._request_timeout_s)
        await self._server.serve(sockets=[self._socket])


def _server_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context


class _Connection(H11Protocol):
    """A connection that is not waited for: uvicorn's own waits for a head, or for a reader, without end."""

    head_timeout_s = REQUEST_TIMEOUT_S
    read_timeout_s = STALL_TIMEOUT_S

    among: Listener | None = None

    _late: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        own = transport.get_extra_info("socket")
        self._place = None if peer is None or own is None else (own.fileno(), peer[0])
        self.access_log = False  # uvicorn's own logs paths wherever its logger has a handler
        self._expect()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._late, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._stalled = self.loop.call_later(self.read_timeout_s, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        super().resume_writing()

    def on_response_complete(self) -> None:
        self._tell_place(is_busy=False)
        super().on_response_complete()

    def _tell_place(self, *, is_busy: bool) -> None:
        if self.among is not None and self._place is not None and not self.transport.is_closing():
            self.among.asks(*self._place, is_busy)

    def shutdown(self) -> None:
        # The end of TLS waits for the other side's word; nobody's is needed any more.
        is_idle = self.cycle is None or self.cycle.response_complete
        super().shutdown()
        self.loop.call_later(0.0 if is_idle else 0.5, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        # Closing waits for the end of the answer to be read.
        self._stalled = self.loop.call_later(self.read_timeout_s, self.transport.abort)

    def _expect(self) -> None:
        """Set the clock for the next head when none is being answered, and stop it once it is there."""
        is_waiting = self.cycle is None or self.cycle.response_complete
        if is_waiting and self._late is None:
            self._late = self.loop.call_later(self.head_timeout_s, self.transport.abort)
        elif not is_waiting and self._late is not None:
            self._late.cancel()
            self._late = None
        if not is_waiting:
            self._tell_place(is_busy=True)
