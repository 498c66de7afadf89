"""Claims over HTTP(S): bodies are read here, within a limit and a time; the claim handler answers.

What is exchanged: :mod:`edge.contracts.claims`.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from coordinator.fleet.claim_handler import Answer, ClaimHandler, refusal
from edge.contracts.claims import KEY_CLAIM_PATH, MAX_CLAIM_BYTES
from edge.runtimes import DEFAULT

BODY_TIMEOUT_S = 15.0

_JOIN_PAGE = f"""This is a claim link of Apportion: it makes a device one of a fleet, once.
On the device:

    pip install 'apportion[{DEFAULT},identity]'
    apportion enrol -

and paste the whole link, as it was scanned.
"""


class Claims:
    """Answers the claims that ``handler`` looks at; every answer ends its connection.

    Args:
        has_page: whether people come here with a browser, or devices with ``apportion enrol`` alone.
    """

    def __init__(self, handler: ClaimHandler, *, has_page: bool = True) -> None:
        self._handler = handler
        self._again = "scan the code again, or open the whole link again" if has_page else "apportion enrol LINK"

    async def exchange(self, request: Request) -> Response:
        """``POST /v1/claim`` or ``/v1/claim-key``: a certificate for a request, a broker's password for a key."""
        address, is_key = _of(request), request.url.path == KEY_CLAIM_PATH
        # Whoever asks too often is sent away before anything of a body is read.
        if (answer := self._handler.too_many(address)) is not None:
            return _response(answer)
        body = await self._body(request)
        if isinstance(body, Answer):
            return _response(body)
        return _response(await run_in_threadpool(self._handler.admitted, body, address, is_key=is_key))

    async def issued_before(self, request: Request) -> Response:
        """``GET /v1/certificate/<digest>``: a certificate that was issued and never arrived."""
        return _response(
            await run_in_threadpool(self._handler.issued_before, request.path_params["digest"], _of(request))
        )

    async def root(self, request: Request) -> Response:
        """``GET /v1/ca.pem``: the root's certificate."""
        return _response(await run_in_threadpool(self._handler.root))

    async def how_to_join(self, request: Request) -> Response:
        """``GET /join`` where no page is served: what to do with the link."""
        return PlainTextResponse(_JOIN_PAGE, headers={"Cache-Control": "no-store", "Connection": "close"})

    async def _body(self, request: Request) -> bytes | Answer:
        """The whole body, or the answer to one that is not fit."""
        length = request.headers.get("content-length", "")
        if not length.isascii() or not length.isdigit() or "transfer-encoding" in request.headers:
            return refusal(HTTPStatus.LENGTH_REQUIRED, "no-length", "a claim says its Content-Length", self._again)
        if len(length) > 9 or int(length) > MAX_CLAIM_BYTES:
            text = f"a claim of {length[:12]} bytes is over the limit of {MAX_CLAIM_BYTES}; it was not read"
            return refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too-large", text, self._again)
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                return await request.body()
        except TimeoutError:
            text = f"the claim did not arrive within {BODY_TIMEOUT_S:g} s"
            return refusal(HTTPStatus.REQUEST_TIMEOUT, "too-slow", text, self._again)
        except ClientDisconnect:
            return refusal(HTTPStatus.BAD_REQUEST, "not-a-claim", "the client left before the claim's end", self._again)


def _of(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def _response(answer: Answer) -> Response:
    # One request a connection: what of a body was not read is not taken for the next one.
    headers = {"Cache-Control": "no-store", **answer.headers, "Connection": "close"}
    return Response(answer.body, answer.status, headers)
