"""What the page reads: the whole, what changes (server-sent events), and what one view alone needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from coordinator.dashboard.board import Board
from coordinator.dashboard.device_log import last_lines
from coordinator.dashboard.fleet import DeviceView
from coordinator.history.records import AssignmentRecord, LedgerEvent, TrafficTotal
from profiles.device import DeviceProfile

LOOK_S = 0.1
"""How often an open page's connection asks whether there is something new to send; asking costs a comparison."""

QUIET_S = 10.0
"""Silence after which something is sent all the same, so that a page that is gone is noticed."""

MAP_S = 0.3
"""Time in which an answer reads further rounds for the map of the model; the page asks on."""

PAGE = 100

_NO_STORE = {"Cache-Control": "no-store"}


class DevicePage(msgspec.Struct, frozen=True, kw_only=True):
    """A device's own page; ``log`` is the end of its agent's log where that is on this machine."""

    view: DeviceView | None
    profile: DeviceProfile | None
    assignments: tuple[AssignmentRecord, ...]
    events: tuple[LedgerEvent, ...]
    traffic: tuple[TrafficTotal, ...]
    log: tuple[str, ...]


class Answers:
    """Answers of one board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._history = board.history

    async def state(self, request: Request) -> Response:
        """Everything that is kept up to date."""
        if not self._board.is_followed:
            await run_in_threadpool(self._board.look)
        whole = await run_in_threadpool(self._board.whole)
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(whole.data, media_type="application/json", headers=_NO_STORE)
        headers = {**_NO_STORE, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        return Response(whole.compressed, media_type="application/json", headers=headers)

    async def stream(self, request: Request) -> Response:
        """Changes from version ``since`` on, as server-sent events; ``reset`` where the page has to read the whole."""
        version = _number(request, "since", -1)
        return StreamingResponse(
            self._changes(request, version), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )

    async def _changes(self, request: Request, version: int) -> AsyncIterator[bytes]:
        with self._board.watched():
            quiet_s = 0.0
            yield b"retry: 1000\n\n"
            while not await request.is_disconnected():
                if version == self._board.version:
                    await asyncio.sleep(LOOK_S)
                    quiet_s += LOOK_S
                    if quiet_s >= QUIET_S:
                        quiet_s = 0.0
                        yield b": still here\n\n"
                    continue
                changes = self._board.since(version)
                if changes is None:
                    yield b"event: reset\ndata: {}\n\n"
                    return
                for data in changes:
                    version += 1
                    yield b"event: change\nid: %d\ndata: %s\n\n" % (version, data)
                quiet_s = 0.0

    async def assignments(self, request: Request) -> Response:
        """The work of an attempt, by device."""
        round_index, attempt = request.path_params["round"], request.path_params["attempt"]
        return await _json(lambda: self._history.assignments_of_round(round_index, attempt))

    async def device(self, request: Request) -> Response:
        """A device's own page."""
        name, before = request.path_params["device"], _number(request, "before", -1)
        view = self._board.device(name)
        if view is None:
            raise HTTPException(404, f"no device '{name[:64]}' in this run")
        folder = self._history.folder
        return await _json(
            lambda: DevicePage(
                view=view,
                profile=self._history.profile(name),
                assignments=self._history.assignments_of_device(
                    name, before_round=None if before < 0 else before, limit=PAGE
                ),
                events=self._history.events(device=name)[-PAGE:],
                traffic=self._history.traffic(name),
                log=() if folder is None else last_lines(folder, name),
            )
        )

    async def model(self, request: Request) -> Response:
        """The model as a map, as far as it was read in :data:`MAP_S` more."""
        return await _json(lambda: self._history.model(budget_s=MAP_S))

    async def layer(self, request: Request) -> Response:
        """Who trained a layer."""
        path = request.query_params.get("path", "")
        return await _json(lambda: self._history.layer_devices(path))

    async def events(self, request: Request) -> Response:
        """Ledger events before number ``before``, the newest of them, in order."""
        before = _number(request, "before", 0)
        first = max(0, before - 1 - PAGE)
        return await _json(lambda: self._history.events(first, limit=max(0, before - 1 - first)))


async def _json(read: Callable[[], Any]) -> Response:
    """What ``read`` gives, in a thread: it waits for a database."""
    data = await run_in_threadpool(lambda: msgspec.json.encode(read()))
    return Response(data, media_type="application/json", headers=_NO_STORE)


def _number(request: Request, name: str, otherwise: int) -> int:
    given = request.query_params.get(name, "")
    if not given:
        return otherwise
    try:
        return int(given)
    except ValueError:
        raise HTTPException(400, f"{name}: a whole number expected, '{given[:32]}' arrived") from None
