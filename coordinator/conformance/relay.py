"""A TCP relay before the broker, so that the agent's connection can be cut while everybody else's stays."""

from __future__ import annotations

import contextlib
import socket
import threading

_CHUNK_BYTES = 65_536


class Relay:
    """Passes bytes between ``127.0.0.1:port`` and a port of this machine, whatever they mean."""

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._is_open = True
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def cut(self) -> int:
        """End every connection at once, without a word; how many there were."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            _close(*pair)
        return len(pairs)

    def hold(self, is_held: bool) -> None:
        """Turn new connections away while ``is_held``."""
        self._is_open = not is_held

    def close(self) -> None:
        """Cut everything and listen no more."""
        self._is_open = False
        # A thread that waits in accept() is not woken by close() alone.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
            except OSError:
                return
            if not self._is_open:
                inner.close()
                continue
            try:
                outer = socket.create_connection(self._target, 5.0)
            except OSError:
                inner.close()
                continue
            for end in (inner, outer):
                end.settimeout(None)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = (inner, outer)
            with self._lock:
                self._pairs.add(pair)
            for source, sink in (pair, (outer, inner)):
                threading.Thread(target=self._pump, args=(source, sink, pair), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, pair: tuple[socket.socket, socket.socket]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                sink.sendall(data)
        with self._lock:
            self._pairs.discard(pair)
        _close(*pair)


def _close(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
