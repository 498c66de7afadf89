"""One MQTT connection of a light device on asyncio: packets, TLS where it is asked for, and what went over the socket.

It keeps nothing that was sent: what is not answered is repeated by the device, as the wire protocol says.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.loadtest import packets
from edge.contracts.errors import AccessDenied, ApportionError, BrokerUnreachable

_TLS_PIECE = 1 << 18


@dataclass
class SocketBytes:
    """Bytes through sockets: MQTT, and TLS where there is some; without the headers of TCP and IP."""

    sent: int = 0
    received: int = 0


class Connection(asyncio.Protocol):
    """An MQTT client connection. ``ready`` is done when broker and subscriptions have answered.

    Args:
        on_message: called with topic and payload of each message; it must not block.
        on_lost: called once when a connection that was ready is gone.
        count: where this connection's bytes are counted.
        tls: with ``host``, the name that the broker's certificate must have.
    """

    def __init__(
        self,
        client_id: str,
        filters: tuple[str, ...],
        *,
        on_message: Callable[[str, bytes], None],
        on_lost: Callable[[], None],
        count: SocketBytes,
        keepalive_s: int,
        user: str = "",
        password: str = "",
        will: tuple[str, bytes] | None = None,
        tls: ssl.SSLContext | None = None,
        host: str = "",
    ) -> None:
        self._hello = packets.connect(client_id, keepalive_s=keepalive_s, user=user, password=password, will=will)
        self._filters = filters
        self._client_id = client_id
        self._on_message, self._on_lost = on_message, on_lost
        self._count = count
        self._reader = packets.Reader()
        self._next_id = 1
        self._transport: asyncio.Transport | None = None
        self._tls = None if tls is None else _Tls(tls, host)
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio says."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._tls is not None:
            self._write_raw(self._tls.begin())
        self._write(self._hello)

    def data_received(self, data: bytes) -> None:
        """As asyncio says; whatever cannot be read ends the connection."""
        self._count.received += len(data)
        try:
            if self._tls is not None:
                data, answer = self._tls.receive(data)
                self._write_raw(answer)
            for packet in self._reader.feed(data):
                self._use(packet)
        except (ApportionError, ssl.SSLError) as error:
            self._fail(error)

    def connection_lost(self, error: Exception | None) -> None:
        """As asyncio says."""
        self._transport = None
        if not self.ready.done():
            self.ready.set_exception(
                BrokerUnreachable(f"{self._client_id}: the broker closed the connection ({error})")
            )
        elif self.ready.exception() is None:
            self._on_lost()

    @property
    def is_open(self) -> bool:
        """Whether something can be sent."""
        return self._transport is not None and self.ready.done() and self.ready.exception() is None

    def publish(self, topic: str, payload: bytes, *, qos: int) -> None:
        """Send a message; nothing when there is no connection."""
        if not self.is_open:
            return
        packet_id = 0
        if qos:
            packet_id = self._next_id
            self._next_id = packet_id % 0xFFFF + 1
        self._write(packets.publish(topic, payload, packet_id=packet_id))

    def ping(self) -> None:
        """Tell the broker that this side is here."""
        self._write(packets.PINGREQ_BYTES)

    def close(self) -> None:
        """Say goodbye to the broker, which then publishes no will, and close."""
        self._write(packets.DISCONNECT_BYTES)
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """End the connection as a dead link does: no goodbye, and what was on its way is lost."""
        if self._transport is not None:
            self._count.sent -= self._transport.get_write_buffer_size()  # never went to the socket
            self._transport.abort()

    def _use(self, packet: packets.Published | packets.Answer) -> None:
        if isinstance(packet, packets.Published):
            if packet.packet_id:
                self._write(packets.puback(packet.packet_id))
            self._on_message(packet.topic, packet.payload)
        elif packet.kind == packets.CONNACK:
            if packet.value:
                raise AccessDenied(
                    f"{self._client_id}: the broker answered with code {packet.value}; check user and password"
                )
            self._write(packets.subscribe(self._filters, 0xFFFF))
        elif packet.kind == packets.SUBACK and not self.ready.done():
            if packet.value & 0x80:
                raise AccessDenied(f"{self._client_id}: the broker refused its topics; check the access list")
            self.ready.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)
        if self._transport is not None:
            self._transport.abort()

    def _write(self, data: bytes) -> None:
        self._write_raw(data if self._tls is None else self._tls.send(data))

    def _write_raw(self, data: bytes) -> None:
        if data and self._transport is not None:
            self._count.sent += len(data)
            self.sent_at = asyncio.get_running_loop().time()
            self._transport.write(data)


class _Tls:
    """TLS between two memories. asyncio's own keeps a buffer of 256 KB for each connection: 2.6 GB for 10,000."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._in, self._out, server_hostname=host)
        self._is_open = False
        self._early: list[bytes] = []

    def begin(self) -> bytes:
        """The first bytes of the handshake."""
        self._shake()
        return self._out.read()

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """(Plain bytes that came, bytes to send back)."""
        self._in.write(data)
        if not self._is_open:
            self._shake()
        pieces = []
        while self._is_open:
            try:
                piece = self._object.read(_TLS_PIECE)
            except ssl.SSLWantReadError:
                break
            if not piece:
                break
            pieces.append(piece)
        return b"".join(pieces), self._out.read()

    def send(self, data: bytes) -> bytes:
        """``data`` as it goes over the socket; kept until the handshake is over."""
        if not self._is_open:
            self._early.append(data)
            return b""
        self._put(data)
        return self._out.read()

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._object.write(view) :]

    def _shake(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        self._is_open = True
        for data in self._early:
            self._put(data)
        self._early.clear()
