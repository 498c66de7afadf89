"""Whether a device is there: asks it to say hello over the broker and waits for it. Orders nothing.

The connection has a certificate of its own (``@<federation>@fleet``), so that a coordinator that runs keeps its own. An
agent answers each call with another hello, and a coordinator takes a second hello for what it is: nothing changes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from coordinator.brokers.broker_files import fleet_files
from coordinator.identity.names import fleet_name
from edge.contracts import topics
from edge.contracts.envelope import seal, unseal
from edge.contracts.errors import AccessDenied, BrokerUnreachable, DeadlineExpired, MessageRejected
from edge.contracts.messages import Hello
from edge.transport.base import Connected, Event, Received
from edge.transport.broker_address import parse_broker
from edge.transport.mqtt import MqttTransport

ASK_EVERY_S = 5.0
"""A device that has just started does not hear the first call, and a message may be lost."""


class Greeter:
    """A connection that listens to the devices of a federation; a context manager. Any number of threads may wait.

    Args:
        broker: URL as it is reached from here.
        connect_timeout_s: how long opening it tries.

    Raises:
        BrokerUnreachable: when it is opened: no broker there.
        AccessDenied: when it is opened: the broker refuses this identity.
        IdentityRefused: ``identity`` holds none.
    """

    def __init__(self, broker: str, identity: Path, federation: str, *, connect_timeout_s: float = 5.0) -> None:
        files = fleet_files(identity, federation)
        self._broker, self._identity, self._federation = broker, identity, federation
        self._changed = threading.Condition()
        self._hellos: dict[str, tuple[float, Hello]] = {}
        self._heard: dict[str, str] = {}
        self._called: set[str] = set()
        address = parse_broker(broker, ca=str(files.ca), certificate=str(files.certificate), key=str(files.key))
        self._transport = MqttTransport(
            address,
            client_id=address.client_id(fleet_name(federation), f"{federation}-fleet"),
            subscriptions=(topics.coordinator_filter(federation),),
            connect_timeout_s=connect_timeout_s,
        )

    def __enter__(self) -> Greeter:
        try:
            self._transport.start(self._take)
        except AccessDenied as error:
            raise AccessDenied(
                f"{error}; the fleet's certificate is that of {self._identity}",
                hint="is the broker one of this identity? Its files anew, then a reload: apportion ca mosquitto "
                f"--out DIR --dir {self._identity}",
            ) from error
        except BrokerUnreachable as error:
            raise BrokerUnreachable(
                f"from this machine {error}", hint="start the broker; --no-wait goes on without hearing the device"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._transport.stop()

    def wait(self, device: str, timeout_s: float, *, is_over: Callable[[], bool] = lambda: False) -> Hello:
        """The hello that ``device`` says within ``timeout_s``, called for again and again; blocks this thread.

        Args:
            is_over: looked at twice a second; the wait ends when it is true.

        Raises:
            DeadlineExpired: none came; the message says what else was heard of the device.
        """
        begun = time.monotonic()
        next_call = begun
        with self._changed:
            while True:
                now = time.monotonic()
                came = self._hellos.get(device)
                if came is not None and came[0] >= begun:
                    return came[1]
                if now - begun >= timeout_s or is_over():
                    break
                if now >= next_call:
                    next_call = now + ASK_EVERY_S
                    self._call(device)
                self._changed.wait(min(0.5, max(0.01, begun + timeout_s - now)))
            heard, is_deaf = self._heard.get(device), not self._heard
        what = f"it did send: {heard}" if heard else "nothing at all was heard of it"
        if is_deaf:
            # Brokers drop what an access file does not allow, and say nothing.
            what += f", nor of any other device; do the broker's files know '{fleet_name(self._federation)}'?"
        raise DeadlineExpired(f"device '{device}' said no hello over {self._broker} within {timeout_s:g} s; {what}")

    def roll_call(self, wait_s: float) -> dict[str, Hello]:
        """Device -> the hello that it says within ``wait_s``, of every device of the federation that is there."""
        begun = time.monotonic()
        self._transport.publish(topics.everyone(self._federation, "hello"), seal("hello", {}))
        time.sleep(wait_s)
        with self._changed:
            return {device: hello for device, (came, hello) in self._hellos.items() if came >= begun}

    def _call(self, device: str) -> None:
        self._called.add(device)
        self._transport.publish(topics.down(self._federation, device, "hello"), seal("hello", {}))

    def _take(self, event: Event) -> None:
        match event:
            case Connected():
                with self._changed:
                    for device in self._called:  # what was called into a lost connection is called again
                        self._call(device)
            case Received(topic=topic, payload=payload):
                self._received(topic, payload)

    def _received(self, topic: str, payload: bytes) -> None:
        try:
            _, device, kind = topics.parse_up(topic)
            hello = unseal(payload).read(Hello) if kind == "hello" else None
        except MessageRejected as error:
            # Whoever sent it is another device's or another release's; the reason is shown if no hello comes.
            device, kind, hello = topic.split("/")[-2], f"a message that cannot be read ({error})", None
        with self._changed:
            self._heard[device] = kind
            if hello is not None and hello.device == device:
                self._hellos[device] = (time.monotonic(), hello)
                self._changed.notify_all()
