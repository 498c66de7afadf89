"""Between a client and PostgreSQL: cuts the connection at a COMMIT, before the server hears it or before it answers."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Literal, Self

CutAt = Literal["question", "answer"]
COMMIT = b"COMMIT\0"


class LossyProxy:
    """Listens at :attr:`port`.

    Attributes:
        commits: how many COMMITs have come.
        cuts: how many of them were cut.
    """

    def __init__(self, server_port: int, *, nth: int, at: CutAt) -> None:
        self._server_port, self._nth, self._at = server_port, nth, at
        self.commits = self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                muted = threading.Event()
                threading.Thread(target=self._up, args=(client, server, muted), daemon=True).start()
                threading.Thread(target=self._down, args=(server, client, muted), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket, muted: threading.Event) -> None:
        with contextlib.suppress(OSError), client, server:
            while data := client.recv(65536):
                if COMMIT in data:
                    self.commits += 1
                    if self.commits == self._nth:
                        self.cuts += 1
                        if self._at == "question":
                            break
                        muted.set()
                server.sendall(data)
                if muted.is_set():
                    muted.wait()
                    # The other thread has heard the answer, and closes both.
            for end in (client, server):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _down(self, server: socket.socket, client: socket.socket, muted: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if muted.is_set():
                    break
                client.sendall(data)
        for end in (client, server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
