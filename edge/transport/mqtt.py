"""One MQTT 3.1.1 connection through paho: events are handed to a queue, nothing blocks in its callbacks.

MQTT 3.1.1 is what every broker speaks. Sessions are clean: what a broker queued for an absent device is stale, both
sides repeat what was not answered. Denied and oversized publishes are acknowledged and dropped by 3.1.1 brokers, so the
size is checked here and completion is never read off a PUBACK.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from edge.contracts.envelope import MAX_MESSAGE_BYTES
from edge.contracts.errors import AccessDenied, BrokerUnreachable, ConfigError, MessageRejected
from edge.transport.base import Connected, Disconnected, Event, LastWill, Qos, Received
from edge.transport.broker_address import BrokerAddress, shown_place
from edge.transport.paho_client import mqtt, send_at_once
from edge.transport.unsent import MOST_BYTES, Unsent

log = logging.getLogger("apportion.mqtt")

KEEPALIVE_S = 20
FAREWELL_WAIT_S = 2.0
_DENIED = frozenset({"Bad user name or password", "Not authorized", "Banned", "Client identifier not valid"})


class MqttTransport:
    """A connection that, once made, is kept: lost ones are retried with backoff for ever, at every place in turn.

    Args:
        client_id: unique at the broker; a second connection with the same one takes the first one's place.
        connect_timeout_s: how long :meth:`start` tries before it gives up.
        inflight: messages of QoS 1 that the broker has not acknowledged; further ones wait here.
        most_unsent, most_queued: bytes of blocks (QoS 0), and messages of QoS 1, that wait here for a broker that does
            not take them; further ones are lost. 0 messages: any number.
    """

    def __init__(
        self,
        address: BrokerAddress,
        *,
        client_id: str,
        subscriptions: Iterable[str],
        will: LastWill | None = None,
        connect_timeout_s: float = 10.0,
        inflight: int = 8,
        most_unsent: int = MOST_BYTES,
        most_queued: int = 0,
    ) -> None:
        self._address = address
        self._places = deque(address.places_for(client_id))
        self._subscriptions = tuple(subscriptions)
        self._connect_timeout_s = connect_timeout_s
        self._deliver: Callable[[Event], None] = lambda event: None
        self._first = threading.Event()
        self._first_error: AccessDenied | BrokerUnreachable | None = None
        self._is_stopping = False
        self._is_open = False
        self._context: ssl.SSLContext | None = None
        self._unsent = Unsent(most_unsent)
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv311, clean_session=True
        )
        self._client.max_inflight_messages_set(inflight)
        self._client.max_queued_messages_set(most_queued)
        self._client.reconnect_delay_set(1, 30)
        if address.username is not None:
            self._client.username_pw_set(address.username, address.password)
        if will is not None:
            self._client.will_set(will.topic, will.payload, qos=1)
        self._client.on_connect = self._on_connect
        self._client.on_connect_fail = self._on_connect_fail
        self._client.on_socket_open = self._on_socket_open
        self._client.on_subscribe = self._on_subscribe
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message

    def start(self, deliver: Callable[[Event], None]) -> None:
        """As :meth:`edge.transport.base.Transport.start`."""
        self._deliver = deliver
        if self._address.tls:
            self._context = tls_context(self._address)
            self._client.tls_set_context(self._context)
        deadline = time.monotonic() + self._connect_timeout_s
        self._open(deadline)
        self._client.loop_start()
        if not self._first.wait(max(1.0, deadline - time.monotonic())):
            self._first_error = self._first_error or BrokerUnreachable(
                f"{self._address} took the connection and did not answer within {self._connect_timeout_s:g} s; "
                "is it an MQTT broker, and is TLS wanted there?"
            )
        if self._first_error is not None:
            self.stop()
            raise self._first_error

    def publish(self, topic: str, payload: bytes, *, qos: Qos = 1) -> None:
        """As :meth:`edge.transport.base.Transport.publish`."""
        if len(payload) > MAX_MESSAGE_BYTES:
            raise MessageRejected(f"{topic}: {len(payload)} bytes are over {MAX_MESSAGE_BYTES}; send them as blocks")
        if qos == 0 and not self._unsent.has_room(len(payload)):
            return
        handed = self._client.publish(topic, payload, qos=qos)
        if qos == 0:
            self._unsent.add(handed, len(payload))

    def take_up_certificate(self) -> None:
        """Read certificate and key again, for the connections that come; the one that is open stays.

        Raises:
            ConfigError: they cannot be read; the former ones go on.
        """
        tls_context(self._address)  # reads all of it; a context whose files do not fit each other is of no more use
        if self._context is not None and self._address.certificate is not None:
            self._context.load_cert_chain(self._address.certificate, self._address.key)

    def wait_for_room(self, most_bytes: int, timeout_s: float) -> bool:
        """Whether at most ``most_bytes`` of blocks (QoS 0) are handed over and unsent, within ``timeout_s``."""
        return self._unsent.wait(most_bytes, timeout_s)

    def stop(self, farewell: tuple[str, bytes] | None = None) -> None:
        """As :meth:`edge.transport.base.Transport.stop`."""
        self._is_stopping = True
        if farewell is not None and self._client.is_connected():
            sent = self._client.publish(*farewell, qos=1)
            try:
                sent.wait_for_publish(FAREWELL_WAIT_S)
            except (RuntimeError, ValueError):
                log.info("the goodbye did not leave")
        self._client.disconnect()
        with contextlib.suppress(AttributeError):  # its thread may end between paho's look at it and its wait for it
            self._client.loop_stop()
        # paho leaves the pair of sockets that wakes its thread to its finalizer, which may run after the sockets' own.
        self._client._reset_sockets(sockpair_only=True)

    def _open(self, deadline: float) -> None:
        address = self._address
        for attempt in itertools.count(1):
            try:
                self._client.connect(*self._places[0], keepalive=KEEPALIVE_S)
                return
            except ssl.SSLCertVerificationError as error:
                raise AccessDenied(
                    f"{address}: the broker's certificate is not trusted ({error.verify_message}); "
                    "pass the authority that signed it with --ca"
                ) from error
            except ssl.SSLError as error:
                raise BrokerUnreachable(
                    f"{address}: TLS failed ({error.reason}); does this port speak TLS? mqtt:// is for plain ones"
                ) from error
            except (OSError, ValueError) as error:
                if time.monotonic() + 0.5 > deadline:
                    raise BrokerUnreachable(
                        f"{address} cannot be reached within {self._connect_timeout_s:g} s ({error}); "
                        "check the address and that the broker runs"
                    ) from error
            self._places.rotate(-1)
            if attempt % len(self._places) == 0:
                time.sleep(0.5)

    def _turn(self) -> None:
        """Have the next attempt go to the next place; paho's own thread makes it."""
        if len(self._places) > 1:
            self._places.rotate(-1)
            self._client.connect_async(*self._places[0], keepalive=KEEPALIVE_S)

    def _on_socket_open(self, client: mqtt.Client, data: Any, opened: Any) -> None:
        self._is_open = True
        send_at_once(opened)

    def _on_connect_fail(self, client: mqtt.Client, data: Any) -> None:
        self._turn()

    def _on_connect(self, client: mqtt.Client, data: Any, flags: Any, reason: ReasonCode, properties: Any) -> None:
        if reason.is_failure:
            user = self._address.username or "(no user name)"
            if str(reason) in _DENIED:
                self._fail(AccessDenied(f"{self._address} refused user '{user}': {reason}; check name and password"))
            else:
                self._fail(BrokerUnreachable(f"{self._address} refused the connection: {reason}; try again later"))
            return
        client.subscribe([(pattern, 1) for pattern in self._subscriptions])

    def _on_subscribe(self, client: mqtt.Client, data: Any, mid: int, reasons: list[ReasonCode], props: Any) -> None:
        if any(reason.is_failure for reason in reasons):
            self._fail(
                AccessDenied(
                    f"{self._address} refused the subscriptions {', '.join(self._subscriptions)} for user "
                    f"'{self._address.username}'; add the device to the broker's access list"
                )
            )
            return
        self._deliver(Connected())
        self._first.set()

    def _on_disconnect(self, client: mqtt.Client, data: Any, flags: Any, reason: ReasonCode, properties: Any) -> None:
        self._unsent.clear()
        if self._is_stopping or not self._is_open:
            return  # paho tells twice of a connection that it gave up for silence
        self._is_open = False
        if not self._first.is_set() and self._address.tls:
            # TLS 1.3 tells of a refused client certificate only after the handshake, by closing the connection.
            self._fail(
                AccessDenied(f"{self._address} closed the connection at once ({reason}); check --cert and --key")
            )
        elif self._first.is_set():
            log.warning("connection to %s lost (%s), trying again", shown_place(*self._places[0]), reason)
            self._turn()
            self._deliver(Disconnected(str(reason)))

    def _on_message(self, client: mqtt.Client, data: Any, message: mqtt.MQTTMessage) -> None:
        self._deliver(Received(message.topic, message.payload))

    def _fail(self, error: AccessDenied | BrokerUnreachable) -> None:
        if self._first.is_set():
            log.warning("%s", error)
            return
        self._first_error = self._first_error or error
        self._first.set()


def tls_context(address: BrokerAddress) -> ssl.SSLContext:
    """A client context that checks the broker's name and certificate, with our certificate when there is one.

    Raises:
        ConfigError: a certificate or key that cannot be loaded.
    """
    try:
        context = ssl.create_default_context(cafile=address.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if address.certificate is not None:
            context.load_cert_chain(address.certificate, address.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError([f"--ca/--cert/--key: {error}"]) from error
    return context
