"""What a run does with its identity while it goes on: messages checked, certificates renewed, the revoked shut out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from coordinator.configuration import RunConfig
from coordinator.publisher import Publisher
from edge.contracts.envelope import Envelope

if TYPE_CHECKING:
    from coordinator.blob_service import BlobService
    from coordinator.cli.page_serving import PageService
    from coordinator.identity.message_check import MessageCheck


class ShutsOut(Protocol):
    """An :class:`~coordinator.inbox.Inbox`, or what hears only some of the devices."""

    def shut_out(self, device: str) -> None:
        """Wait for ``device`` no longer: it was revoked."""


class IdentityDesk:
    """At work while its context is open; without an identity there is nothing to do.

    Attributes:
        check: raises for a message that may not be used; None where all may.
        handlers: of the message kinds that are about a device's own certificate.
    """

    def __init__(self, config: RunConfig, federation: str, publisher: Publisher, say: Callable[[str], None]) -> None:
        self.check: MessageCheck | None = None
        self.handlers: Mapping[str, Callable[[str, Envelope], None]] = {}
        self._parts: list[contextlib.AbstractContextManager[object]] = []
        self._open = contextlib.ExitStack()
        self._identity = Path(config.broker.identity) if config.broker.identity else None
        if self._identity is None:
            return
        from coordinator.identity.message_check import BrowserSignatures
        from coordinator.identity.renewals import RenewalDesk

        self.check = BrowserSignatures(self._identity, federation)
        renewals = RenewalDesk(self._identity, publisher.say, say)
        self.handlers = renewals.handlers
        self._parts.append(renewals)

    def shutting_out(self, inbox: ShutsOut, *tickets: BlobService | PageService | None) -> IdentityDesk:
        """This desk, which has whoever is revoked leave ``inbox`` and lose its ``tickets`` as long as it is at work."""
        if self._identity is None:
            return self
        from coordinator.identity.revocations import Revocations

        def shut_out(device: str) -> None:
            for given in tickets:
                if given is not None:
                    given.end_tickets(device)
            inbox.shut_out(device)

        self._parts.append(Revocations(self._identity, shut_out))
        return self

    def __enter__(self) -> IdentityDesk:
        for part in self._parts:
            self._open.enter_context(part)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
