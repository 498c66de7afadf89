"""One MQTT 3.1.1 connection through paho: events are handed to a queue, nothing blocks in its callbacks.

MQTT 3.1.1 is what every broker speaks. Sessions are clean: what a broker queued for an absent device is stale, both
sides repeat what was not answered. Denied and oversized publishes are acknowledged and dropped by 3.1.1 brokers, so the
size is checked here and completion is never read off a PUBACK.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from edge.contracts.envelope import MAX_MESSAGE_BYTES
from edge.contracts.errors import AccessDenied, BrokerUnreachable, ConfigError, MessageRejected
from edge.transport.base import Connected, Disconnected, Event, LastWill, Qos, Received
from edge.transport.paho_client import mqtt

log = logging.getLogger("apportion.mqtt")

KEEPALIVE_S = 20
FAREWELL_WAIT_S = 2.0
PASSWORD_VARIABLE = "APPORTION_BROKER_PASSWORD"
_DENIED = frozenset({"Bad user name or password", "Not authorized", "Banned", "Client identifier not valid"})


@dataclass(frozen=True, kw_only=True)
class BrokerAddress:
    """Where the broker is and who we are to it; ``ca`` is None for the system's authorities."""

    host: str
    port: int
    tls: bool = False
    username: str | None = None
    password: str | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        """The URL without credentials, for messages."""
        return f"{'mqtts' if self.tls else 'mqtt'}://{self.host}:{self.port}"


def parse_broker(
    url: str, *, user: str | None = None, ca: str | None = None, certificate: str | None = None, key: str | None = None
) -> BrokerAddress:
    """The address in ``mqtt[s]://[user[:password]@]host[:port]``; a password may also come from the environment.

    Args:
        user: taken when the URL names none and there is a password.

    Raises:
        ConfigError: another scheme, no host, an impossible port, or TLS files that are not there.
    """
    problems = []
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        port = None
        problems.append(f"--broker: {error}")
    shown = f"{parts.scheme}://{parts.hostname or ''}"
    if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname:
        problems.append(f"--broker: {shown!r} is not mqtt://host[:port] or mqtts://host[:port]")
    is_tls = parts.scheme == "mqtts"
    for flag, path in (("--ca", ca), ("--cert", certificate), ("--key", key)):
        if path is not None and not is_tls:
            problems.append(f"{flag}: only mqtts:// uses it, the broker is {shown}")
        elif path is not None and not os.path.isfile(path):
            problems.append(f"{flag}: no file {path}")
    if (certificate is None) != (key is None):
        problems.append("--cert and --key: give both or neither")
    if problems:
        raise ConfigError(problems)
    password = unquote(parts.password) if parts.password is not None else os.environ.get(PASSWORD_VARIABLE)
    return BrokerAddress(
        host=parts.hostname or "",
        port=port or (8883 if is_tls else 1883),
        tls=is_tls,
        username=unquote(parts.username) if parts.username else user if password is not None else None,
        password=password,
        ca=ca,
        certificate=certificate,
        key=key,
    )


class MqttTransport:
    """A connection that, once made, is kept: lost ones are retried with backoff for ever.

    Args:
        client_id: unique at the broker; a second connection with the same one takes the first one's place.
        connect_timeout_s: how long :meth:`start` tries before it gives up.
    """

    def __init__(
        self,
        address: BrokerAddress,
        *,
        client_id: str,
        subscriptions: Iterable[str],
        will: LastWill | None = None,
        connect_timeout_s: float = 10.0,
    ) -> None:
        self._address = address
        self._subscriptions = tuple(subscriptions)
        self._connect_timeout_s = connect_timeout_s
        self._deliver: Callable[[Event], None] = lambda event: None
        self._first = threading.Event()
        self._first_error: AccessDenied | BrokerUnreachable | None = None
        self._is_stopping = False
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv311, clean_session=True
        )
        self._client.max_inflight_messages_set(8)
        self._client.reconnect_delay_set(1, 30)
        if address.username is not None:
            self._client.username_pw_set(address.username, address.password)
        if will is not None:
            self._client.will_set(will.topic, will.payload, qos=1)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message

    def start(self, deliver: Callable[[Event], None]) -> None:
        """As :meth:`edge.transport.base.Transport.start`."""
        self._deliver = deliver
        if self._address.tls:
            self._client.tls_set_context(tls_context(self._address))
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
        self._client.publish(topic, payload, qos=qos)

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
        self._client.loop_stop()

    def _open(self, deadline: float) -> None:
        address = self._address
        while True:
            try:
                self._client.connect(address.host, address.port, keepalive=KEEPALIVE_S)
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
            time.sleep(0.5)

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
        if self._is_stopping:
            return
        if not self._first.is_set() and self._address.tls:
            # TLS 1.3 tells of a refused client certificate only after the handshake, by closing the connection.
            self._fail(
                AccessDenied(f"{self._address} closed the connection at once ({reason}); check --cert and --key")
            )
        elif self._first.is_set():
            log.warning("connection to %s lost (%s), trying again", self._address, reason)
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
