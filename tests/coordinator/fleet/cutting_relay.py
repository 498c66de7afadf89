"""A way to a server that breaks after a given number of bytes, as a host does that loses its power or its network."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

CHUNK = 1 << 14
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of no time: the peer sees a reset, not an orderly end


class CuttingRelay:
    """Forwards connections of the loopback to ``target`` until it is told to cut one.

    Attributes:
        port: where it listens.
        cuts: connections it has cut.
    """

    def __init__(self, target: int) -> None:
        self.cuts = 0
        self._target = target
        self._left: int | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept, name="relay")]
        self._threads[0].start()

    def cut_after(self, sent: int) -> None:
        """Cut the connection that brings what goes to the server from now on to ``sent`` bytes, and no other."""
        self._left = sent

    def close(self) -> None:
        """No new connections; the open ones end when either side ends them."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> CuttingRelay:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            for pair, counted in (((client, server), True), ((server, client), False)):
                thread = threading.Thread(target=self._forward, args=(*pair, counted), name="relay")
                self._threads.append(thread)
                thread.start()

    def _forward(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        try:
            while data := source.recv(CHUNK):
                if counted and self._left is not None:
                    self._left -= len(data)
                    if self._left < 0:
                        self._left = None
                        self.cuts += 1
                        for end in (source, sink):
                            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                            end.shutdown(socket.SHUT_RDWR)
                        return
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            if not counted:  # the way back ends last
                source.close()
                sink.close()
