"""The web application of a coordinator: claims, blobs, updates and the page, whichever of them an address has."""

from __future__ import annotations

import logging
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.fleet.claim_handler import ClaimHandler
from coordinator.web.blobs import Blobs
from coordinator.web.claims import Claims
from coordinator.web.headers import WithHeaders, security_headers
from coordinator.web.pages import Pages
from edge.contracts.claims import CERTIFICATE_PATH, CLAIM_PATH, JOIN_PATH, KEY_CLAIM_PATH, ROOT_PATH

HEALTH_PATH = "/healthz"

log = logging.getLogger("apportion.web")


def web_application(
    pages: Pages | None, handler: ClaimHandler | None, *, web_socket: str = "", blobs: Blobs | None = None
) -> ASGIApp:
    """The application; of what is None it serves nothing.

    Args:
        web_socket: the broker's ``wss://host:port[/path]``, the only other address that the page may speak to.
    """
    routes: list[BaseRoute] = [Route(HEALTH_PATH, _health, methods=["GET"])]
    if handler is not None:
        claims = Claims(handler, has_page=pages is not None)
        routes += [
            Route(CLAIM_PATH, claims.exchange, methods=["POST"]),
            Route(KEY_CLAIM_PATH, claims.exchange, methods=["POST"]),
            Route(CERTIFICATE_PATH + "{digest}", claims.issued_before, methods=["GET"]),
            Route(ROOT_PATH, claims.root, methods=["GET"]),
        ]
        if pages is None:
            routes.append(Route(JOIN_PATH, claims.how_to_join, methods=["GET"]))
    if blobs is not None:
        routes.append(Route("/v1/{ticket}/{rest:path}", blobs.answer, methods=["GET", "PUT"]))
    if pages is None:
        routes.append(Mount("/", app=_nowhere))
    else:
        routes.append(Route("/{path:path}", pages.answer, methods=["GET"]))
    application = Starlette(routes=routes, exception_handlers={HTTPException: _refused, Exception: _broken})
    application.router.redirect_slashes = False
    # Around the whole: an error of ours is answered outside of the application's middleware.
    return application if pages is None else WithHeaders(application, security_headers(web_socket))


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"}, headers={"Cache-Control": "no-store"})


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    is_known = scope["method"] in ("GET", "POST", "PUT")
    status = HTTPStatus.NOT_FOUND if is_known else HTTPStatus.NOT_IMPLEMENTED
    await Response(status_code=status, headers={"Connection": "close"})(scope, receive, send)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = {**(error.headers or {}), "Connection": "close", "Cache-Control": "no-store"}
    return PlainTextResponse(f"{error.detail}\n", status_code=error.status_code, headers=headers)


async def _broken(request: Request, error: Exception) -> Response:
    # Neither path nor text of the error: both may hold what is secret.
    log.error("a request could not be answered: %s", type(error).__name__)
    return PlainTextResponse("internal error\n", status_code=500, headers={"Connection": "close"})
