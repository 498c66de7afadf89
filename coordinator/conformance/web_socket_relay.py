"""MQTT over WebSockets before the kit's broker: what comes in binary frames goes on over TCP, and back.

So every broker of the kit has such a door, and it can be cut like the other one.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve
from websockets.typing import Subprotocol

_CHUNK_BYTES = 65_536


class WebSocketRelay:
    """Listens at ``ws://127.0.0.1:port``, subprotocol ``mqtt``.

    Args:
        target_port: the broker's, on this machine.
        context: for a broker behind TLS.
    """

    def __init__(self, target_port: int, context: ssl.SSLContext | None = None) -> None:
        self._target_port = target_port
        self._context = context
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._is_open = True
        self._server = serve(
            self._bridge, "127.0.0.1", 0, subprotocols=[Subprotocol("mqtt")], compression=None, max_size=None
        )
        self.port = int(self._server.socket.getsockname()[1])
        threading.Thread(target=self._server.serve_forever, name="web-socket-relay", daemon=True).start()

    def cut(self) -> int:
        """As :meth:`coordinator.conformance.relay.Relay.cut`."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        return len(pairs)

    def hold(self, is_held: bool) -> None:
        """As :meth:`coordinator.conformance.relay.Relay.hold`."""
        self._is_open = not is_held

    def close(self) -> None:
        """As :meth:`coordinator.conformance.relay.Relay.close`."""
        self._is_open = False
        self._server.shutdown()
        self.cut()

    def _bridge(self, client: ServerConnection) -> None:
        if not self._is_open:
            return
        plain = socket.create_connection(("127.0.0.1", self._target_port), 5.0)
        plain.settimeout(None)
        broker = plain if self._context is None else self._context.wrap_socket(plain, server_hostname="127.0.0.1")
        pair = (client.socket, broker)
        with self._lock:
            self._pairs.add(pair)
        back = threading.Thread(target=self._back, args=(client, broker), daemon=True)
        back.start()
        try:
            with contextlib.suppress(ConnectionClosed, OSError):
                for frame in client:
                    broker.sendall(frame if isinstance(frame, bytes) else frame.encode())
        finally:
            with self._lock:
                self._pairs.discard(pair)
            with contextlib.suppress(OSError):
                broker.shutdown(socket.SHUT_RDWR)
            back.join(5.0)
            broker.close()

    def _back(self, client: ServerConnection, broker: socket.socket) -> None:
        with contextlib.suppress(ConnectionClosed, OSError):
            while data := broker.recv(_CHUNK_BYTES):
                client.send(data)
        with contextlib.suppress(ConnectionClosed, OSError):
            client.close()
