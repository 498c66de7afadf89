"""What a run does with its identity while it goes on: messages checked, certificates renewed, the revoked shut out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from coordinator.config.run_config import RunConfig
from edge.contracts.envelope import Envelope
from edge.serving.publisher import Publisher

if TYPE_CHECKING:
    from coordinator.cli.page_serving import PageService
    from coordinator.identity.message_check import MessageCheck
    from coordinator.web.device_services import BlobService


class ShutsOut(Protocol):
    """An :class:`~coordinator.messaging.inbox.Inbox`, or what hears only some of the devices."""

    def shut_out(self, device: str) -> None:
        """Wait for ``device`` no longer: it was revoked."""


class IdentityHandler:
    """At work while its context is open; without an identity there is nothing to do.

    Args:
        run: the run's nonce, which devices sign.

    Attributes:
        check: raises for a message that may not be used; None where all may.
        handlers: of the message kinds that are about a device's own certificate.
        unfit: why a device cannot take part in the run's rounds, as far as its certificates decide.
    """

    def __init__(
        self, config: RunConfig, federation: str, publisher: Publisher, say: Callable[[str], None], run: str = ""
    ) -> None:
        self.check: MessageCheck | None = None
        self.unfit: Callable[[str], str] = lambda device: ""
        self.handlers: Mapping[str, Callable[[str, Envelope], None]] = {}
        self._parts: list[contextlib.AbstractContextManager[object]] = []
        self._open = contextlib.ExitStack()
        self._identity = Path(config.broker.identity) if config.broker.identity else None
        if self._identity is None:
            return
        from coordinator.identity.masking_signatures import MaskingSignatures
        from coordinator.identity.message_check import BrowserSignatures
        from coordinator.identity.renewals import RenewalHandler

        checks: list[MessageCheck] = [BrowserSignatures(self._identity, federation)]
        if config.privacy.secure_aggregation and config.broker.knows_certificates:
            masking = MaskingSignatures(self._identity, run)
            checks.append(masking)
            self.unfit = masking.unfit

        def check(device: str, envelope: Envelope) -> None:
            for one in checks:
                one(device, envelope)

        self.check = check
        renewals = RenewalHandler(self._identity, publisher.say, say)
        self.handlers = renewals.handlers
        self._parts.append(renewals)

    def shutting_out(self, inbox: ShutsOut, *tickets: BlobService | PageService | None) -> IdentityHandler:
        """This handler; while it works, whoever is revoked leaves ``inbox`` and loses its ``tickets``."""
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

    def __enter__(self) -> IdentityHandler:
        for part in self._parts:
            self._open.enter_context(part)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
