"""Blobs over HTTPS by range request, as an order's ``bulk`` names them; a scenario may have it fail."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from coordinator.brokers.certificates import ServerCertificate
from coordinator.web.server import WebServer

TICKET = "/v1/ticket/"
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})")
_EVERYONE = {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "content-range"}


class KitBlobServer:
    """Serves ``blobs``.

    Attributes:
        url: what an order says; ``http`` without a certificate, as a page of the same machine has it.
        asked: (digest, first, last) of every request.
        fails: whether every request is answered with status 503.
    """

    def __init__(self, blobs: Mapping[str, bytes]) -> None:
        self.url = ""
        self.blobs = blobs
        self.asked: list[tuple[str, int, int]] = []
        self.fails = False

    async def answer(self, request: Request) -> Response:
        """The range of a blob; a page of another origin asks first whether it may ask for one."""
        if request.method == "OPTIONS":
            allowed = {"Access-Control-Allow-Headers": "range", "Access-Control-Allow-Methods": "GET"}
            return Response(status_code=204, headers={**_EVERYONE, **allowed})
        part = _RANGE.fullmatch(request.headers.get("range", ""))
        digest = request.path_params["digest"]
        data = self.blobs.get(digest)
        self.asked.append((digest, *((int(part[1]), int(part[2])) if part else (0, 0))))
        if self.fails or part is None or data is None:
            return Response(status_code=503 if self.fails else 404, headers=_EVERYONE)
        first, last = int(part[1]), min(int(part[2]), len(data) - 1)
        headers = {**_EVERYONE, "Content-Range": f"bytes {first}-{last}/{len(data)}"}
        return Response(data[first : last + 1], 206, headers)


@contextlib.contextmanager
def open_blob_server(blobs: Mapping[str, bytes], certificate: ServerCertificate | None) -> Iterator[KitBlobServer]:
    """A server with ``certificate`` for as long as the context is open."""
    found = KitBlobServer(blobs)
    app = Starlette(routes=[Route(TICKET + "{digest:path}", found.answer, methods=["GET", "OPTIONS"])])
    files = (certificate.certificate, certificate.key) if certificate is not None else ()
    with WebServer(f"{'https' if files else 'http'}://127.0.0.1:0", app, *files) as server:
        found.url = server.address + TICKET
        yield found
