"""What a page may ask of a run, with the token: the same as the verbs of that name, with the same audit log entries."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from coordinator.dashboard.board import Board
from coordinator.defences.by_hand import let_back, set_aside
from coordinator.ledger.ledger import Ledger
from coordinator.rounds.control import Request as Asked
from coordinator.rounds.control import ask
from edge.contracts.errors import ApportionError

CONTROLS: dict[str, Asked] = {"pause": "pause", "continue": "", "drain": "drain", "stop": "stop"}
MOST_BYTES = 4096


class Body(msgspec.Struct):
    """Of a request about a device.

    Attributes:
        reason: kept as evidence of a quarantine.
    """

    reason: Annotated[str, msgspec.Meta(max_length=500)] = ""


class Requests:
    """Carries out what the page asks.

    Args:
        ledger: opens the run's ledger for writing.
        token: what the page has to send; empty: nothing is carried out.
    """

    def __init__(self, board: Board, ledger: Callable[[], Ledger], token: str) -> None:
        self._board = board
        self._open = ledger
        self._token = token

    async def check(self, request: Request) -> Response:
        """Whether the token is the right one, and nothing else."""
        return self._refusal(request) or JSONResponse({"ok": True}, headers={"Cache-Control": "no-store"})

    async def control(self, request: Request) -> Response:
        """``pause``, ``continue``, ``drain`` or ``stop``."""
        word = request.path_params["word"]
        if word not in CONTROLS:
            return _problem(404, "unknown-request", f"'{word[:32]}' is no request; there are {', '.join(CONTROLS)}")

        def carry_out(ledger: Ledger) -> dict[str, Any]:
            ask(ledger, CONTROLS[word])
            return {"asked": word}

        return self._refusal(request) or await self._carry_out(carry_out)

    async def quarantine(self, request: Request) -> Response:
        """Set a device's update of the open round aside."""
        if refused := self._refusal(request):
            return refused
        try:
            body = msgspec.json.decode(await _body(request) or b"{}", type=Body)
        except msgspec.MsgspecError as error:
            return _problem(400, "bad-request", f"the request's JSON cannot be read: {error}")
        device = request.path_params["device"]

        def carry_out(ledger: Ledger) -> dict[str, Any]:
            entry = set_aside(ledger, device, body.reason or "by hand, from the dashboard")
            return {"device": device, "round": entry.round, "assignment_id": entry.assignment_id}

        return await self._carry_out(carry_out)

    async def release(self, request: Request) -> Response:
        """Let a device take part again."""
        device = request.path_params["device"]

        def carry_out(ledger: Ledger) -> dict[str, Any]:
            done = let_back(ledger, device)
            return {"device": device, "released": done.released, "barred_until": done.barred_until}

        return self._refusal(request) or await self._carry_out(carry_out)

    def _refusal(self, request: Request) -> Response | None:
        if not self._token:
            return _problem(
                403,
                "read-only",
                "this dashboard is read-only: it was opened without a token",
                "open another: apportion watch",
            )
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token.encode()):
            return None
        said = "is missing" if not given else "is not the one of this dashboard"
        return _problem(
            401,
            "bad-token",
            f"the token {said}",
            "copy it from the output of the command that opened the dashboard, or open the address that it printed",
            headers={"WWW-Authenticate": "Bearer"},
        )

    async def _carry_out(self, work: Callable[[Ledger], dict[str, Any]]) -> Response:
        def here() -> dict[str, Any]:
            with self._open() as ledger:
                return work(ledger)

        try:
            done = await run_in_threadpool(here)
        except ApportionError as error:
            return _problem(409, error.code, str(error), error.hint)
        self._board.look_soon()
        return JSONResponse({"ok": True, **done}, headers={"Cache-Control": "no-store"})


async def _body(request: Request) -> bytes:
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > MOST_BYTES:
            raise msgspec.DecodeError(f"more than {MOST_BYTES} bytes")
    return data


def _problem(
    status: int, code: str, message: str, hint: str = "", *, headers: dict[str, str] | None = None
) -> Response:
    values = {"ok": False, "error": {"code": code, "message": message, "hint": hint}}
    return JSONResponse(values, status_code=status, headers={"Cache-Control": "no-store", **(headers or {})})
