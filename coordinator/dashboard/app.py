"""The dashboard's web application: its page, what the page reads, and what it may ask with the token."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.dashboard.answers import Answers
from coordinator.dashboard.board import Board
from coordinator.dashboard.requests import Requests
from coordinator.ledger.ledger import Ledger
from coordinator.web.connections import LOOPBACK
from coordinator.web.headers import WithHeaders
from coordinator.web.pages import Pages

STATE_PATH = "/api/state"

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), usb=()",
}

log = logging.getLogger("apportion.dashboard")


def page_folder() -> Path:
    """Where the page's files are."""
    return Path(str(resources.files("coordinator"))) / "dashboard" / "page"


def dashboard(board: Board, ledger: Callable[[], Ledger], token: str, *, hosts: Sequence[str] = ()) -> ASGIApp:
    """The application.

    Args:
        ledger: opens the run's ledger for writing, for a request with the right token.
        token: empty: the page is read-only.
        hosts: further names that the page is reached by. Others are refused: a page elsewhere whose name was made to
            lead here could read it otherwise.
    """
    answers, requests = Answers(board), Requests(board, ledger, token)
    routes = [
        Route(STATE_PATH, answers.state, methods=["GET"]),
        Route("/api/changes", answers.stream, methods=["GET"]),
        Route("/api/rounds/{round:int}/{attempt:int}", answers.assignments, methods=["GET"]),
        Route("/api/devices/{device}", answers.device, methods=["GET"]),
        Route("/api/model", answers.model, methods=["GET"]),
        Route("/api/layer", answers.layer, methods=["GET"]),
        Route("/api/events", answers.events, methods=["GET"]),
        Route("/api/token", requests.check, methods=["POST"]),
        Route("/api/requests/{word}", requests.control, methods=["POST"]),
        Route("/api/devices/{device}/quarantine", requests.quarantine, methods=["POST"]),
        Route("/api/devices/{device}/release", requests.release, methods=["POST"]),
        Route("/{path:path}", Pages(page_folder()).answer, methods=["GET"]),
    ]
    application = Starlette(
        routes=routes,
        middleware=[
            Middleware(KnownHosts, hosts=[*LOOPBACK, *hosts]),
            Middleware(GZipMiddleware, minimum_size=20_000, compresslevel=1),
        ],
        exception_handlers={HTTPException: _refused, Exception: _broken},
    )
    application.router.redirect_slashes = False
    return WithHeaders(application, HEADERS)


class KnownHosts:
    """``app``, for requests in the names ``hosts`` alone: no page of another name, made to lead here, reads it."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        named = urlsplit(f"//{Headers(scope=scope).get('host', '')}").hostname or ""
        if named in self._hosts:
            await self._app(scope, receive, send)
            return
        text = f"'{named[:100]}' is no name of this dashboard; if it is yours: apportion watch RUN_DIR --host NAME\n"
        await PlainTextResponse(text, status_code=421)(scope, receive, send)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    values = {"ok": False, "error": {"code": "refused", "message": error.detail, "hint": ""}}
    return JSONResponse(values, status_code=error.status_code, headers={"Cache-Control": "no-store"})


async def _broken(request: Request, error: Exception) -> Response:
    log.error("a request could not be answered: %s: %s", type(error).__name__, error)
    return PlainTextResponse("internal error; see the command's output\n", status_code=500)
