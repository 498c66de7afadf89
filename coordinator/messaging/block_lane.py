"""Blocks go out in a thread of their own, as fast as the connection takes them: control messages do not wait behind.

A thousand devices that begin a round ask for thousands of blocks within a second. They are queued here as what they
are, requests of some hundred bytes, and become blocks only when the connection has sent most of those before. A request
that is queued already is not queued again: a device that waits longer than it likes repeats itself. Devices take turns,
and of each only so many requests wait, so that who asks for everything at once waits for it alone.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from edge.contracts.messages import Get

log = logging.getLogger("apportion.coordinator")

MOST_UNSENT_BYTES = 4 << 20
"""Blocks handed to the connection and not sent yet: what a control message may have before it, 40 ms at 100 MB/s."""

MOST_REQUESTS = 100_000
"""A request beyond is dropped, and asked again."""

MOST_OF_A_DEVICE = 64
"""Likewise of one device; agents here have windows of 4."""


@runtime_checkable
class Paced(Protocol):
    """A transport that says when what was published has left."""

    def wait_for_room(self, most_bytes: int, timeout_s: float) -> bool:
        """Whether at most ``most_bytes`` of QoS 0 payload are unsent, within ``timeout_s``."""


class BlockLane:
    """Answers ``get`` while its context is open: a request of each device in turn, those of one in order of arrival.

    Args:
        serve: publishes the answer to one request.
        transport: waited for where it is :class:`Paced`.
    """

    def __init__(self, serve: Callable[[str, Get], None], transport: Any) -> None:
        self._serve = serve
        self._paced = transport if isinstance(transport, Paced) else None
        self._asked: OrderedDict[str, OrderedDict[tuple[str, int], Get]] = OrderedDict()
        self._count = 0
        self._changed = threading.Condition()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="blocks", daemon=True)

    def __enter__(self) -> BlockLane:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        self._thread.join(10.0)

    def ask(self, device: str, get: Get) -> None:
        """A device asks for a block; returns at once."""
        with self._changed:
            own, key = self._asked.setdefault(device, OrderedDict()), (get.digest, get.offset)
            if key not in own and len(own) < MOST_OF_A_DEVICE and self._count < MOST_REQUESTS:
                own[key] = get
                self._count += 1
                self._changed.notify_all()
            elif not own:
                del self._asked[device]

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked or self._is_ending)
                if self._is_ending:
                    return
            if self._paced is not None and not self._paced.wait_for_room(MOST_UNSENT_BYTES, 1.0):
                continue
            with self._changed:
                device, get = self._next()
            try:
                self._serve(device, get)
            except Exception:
                # A bug of ours. No block of one device may end the federation for the others.
                log.exception("block for %s was not sent; please report this", device)

    def _next(self) -> tuple[str, Get]:
        """The oldest request of the device whose turn it is; its others wait until everybody had a turn."""
        device, own = self._asked.popitem(last=False)
        _, get = own.popitem(last=False)
        if own:
            self._asked[device] = own
        self._count -= 1
        return device, get
