"""A connection whose subscriptions grow while it is open; :mod:`edge.transport.mqtt` has those of the beginning."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from edge.transport.broker_address import BrokerAddress
from edge.transport.mqtt import MqttTransport

log = logging.getLogger("apportion.mqtt")

AT_ONCE = 1000
"""Subscriptions in one packet: a broker limits its size."""


class GrowingTransport(MqttTransport):
    """As :class:`MqttTransport`.

    Args:
        subscriptions: whose acknowledgement is the connection's beginning.
        further: subscribed then, before anything is published.
    """

    def __init__(
        self,
        address: BrokerAddress,
        *,
        client_id: str,
        subscriptions: Iterable[str],
        further: Sequence[str] = (),
        inflight: int = 8,
    ) -> None:
        super().__init__(address, client_id=client_id, subscriptions=subscriptions, inflight=inflight)
        self._further = list(further)
        self._asked: set[int | None] = set()

    def subscribe(self, patterns: Sequence[str]) -> None:
        """Asks for further topics, now and after every reconnect; returns at once. Call it where events are delivered.

        What is published afterwards reaches the broker after it.
        """
        self._further += patterns
        if self._client.is_connected():
            self._ask_for(patterns)

    def _ask_for(self, patterns: Sequence[str]) -> None:
        for start in range(0, len(patterns), AT_ONCE):
            group = [(pattern, 1) for pattern in patterns[start : start + AT_ONCE]]
            self._asked.add(self._client.subscribe(group)[1])

    def _on_subscribe(self, client: Any, data: Any, mid: int, reasons: list[Any], props: Any) -> None:
        if mid not in self._asked:
            self._asked.clear()
            self._ask_for(self._further)
            super()._on_subscribe(client, data, mid, reasons, props)
            return
        self._asked.discard(mid)
        if any(reason.is_failure for reason in reasons):
            log.warning("%s refused a subscription; messages of some devices do not come", self._address)
