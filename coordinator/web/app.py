"""The web application of a coordinator: the page, claims and blobs at one origin, with strict headers on everything."""

from __future__ import annotations

import logging

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from coordinator.fleet.claim_desk import ClaimDesk
from coordinator.web.blobs import Blobs
from coordinator.web.claims import Claims
from coordinator.web.headers import WithHeaders, security_headers
from coordinator.web.pages import Pages
from edge.contracts.claims import CERTIFICATE_PATH, CLAIM_PATH, KEY_CLAIM_PATH, ROOT_PATH

HEALTH_PATH = "/healthz"

log = logging.getLogger("apportion.web")


def web_application(pages: Pages, desk: ClaimDesk, *, web_socket: str, blobs: Blobs | None = None) -> ASGIApp:
    """The application.

    Args:
        web_socket: the broker's ``wss://host:port[/path]``, the only other address that the page may speak to.
        blobs: None where no run serves any.
    """
    claims = Claims(desk)
    routes = [
        Route(HEALTH_PATH, _health, methods=["GET"]),
        Route(CLAIM_PATH, claims.exchange, methods=["POST"]),
        Route(KEY_CLAIM_PATH, claims.exchange, methods=["POST"]),
        Route(CERTIFICATE_PATH + "{digest}", claims.issued_before, methods=["GET"]),
        Route(ROOT_PATH, claims.root, methods=["GET"]),
    ]
    if blobs is not None:
        routes.append(Route("/v1/{ticket}/{digest}", blobs.answer, methods=["GET"]))
    routes.append(Route("/{path:path}", pages.answer, methods=["GET"]))
    handlers = {HTTPException: _refused, Exception: _broken}
    application = Starlette(routes=routes, exception_handlers=handlers)
    application.router.redirect_slashes = False
    # Around the whole: an error of ours is answered outside of the application's middleware.
    return WithHeaders(application, security_headers(web_socket))


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"}, headers={"Cache-Control": "no-store"})


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = {**(error.headers or {}), "Connection": "close", "Cache-Control": "no-store"}
    return PlainTextResponse(f"{error.detail}\n", status_code=error.status_code, headers=headers)


async def _broken(request: Request, error: Exception) -> Response:
    # Neither path nor text of the error: both may hold what is secret.
    log.error("a request could not be answered: %s", type(error).__name__)
    return PlainTextResponse("internal error\n", status_code=500, headers={"Connection": "close"})
