"""Where the agent under test is to connect, and who starts it: the seam between the kit and any agent."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol
from urllib.parse import quote, urlsplit

import msgspec


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an agent has to be given. Files are on this machine; another one may be given their contents.

    Attributes:
        url: ``mqtt://127.0.0.1:port``, or ``mqtts://`` where ``ca`` is a file.
        web_socket_url: ``ws://127.0.0.1:port``, the same broker.
        user: the device's id.
        ca: PEM file of the authority of the broker's certificate, and of the server of blobs; empty without TLS.
        trust: PEM of the only key whose orders the agent is to follow; ``trust_file`` holds the same.
        data: folder of npz files (``x`` uint8 [examples, 3, 8, 8], ``y`` int64 [examples]).
        state: folder for what the agent keeps; the same one at a restart, another one for a device that forgot all.
        budget_mb: memory (1 MB = 2^20 bytes) that the agent is to say and keep.
    """

    url: str
    web_socket_url: str
    user: str
    password: str
    ca: str = ""
    trust: str
    trust_file: str
    federation: str
    device: str
    data: str
    state: str
    budget_mb: int
    runtime: str

    def placeholders(self) -> dict[str, str]:
        """What a command template may name: every field, ``broker`` with user and password, ``host`` and ``port``."""
        parts = urlsplit(self.url)
        user = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"
        fields = {name: str(value) for name, value in msgspec.structs.asdict(self).items()}
        return fields | {
            "broker": f"{parts.scheme}://{user}@{parts.netloc}",
            "host": parts.hostname or "",
            "port": str(parts.port or ""),
        }

    def examples(self) -> int:
        """How many examples the data folder holds; 0 when it cannot be read."""
        from edge.contracts.errors import ApportionError
        from edge.training.local_data import read_local_data

        try:
            return len(read_local_data(str(Path(self.data))))
        except ApportionError:
            return 0


class AgentDriver(Protocol):
    """Starts and ends one agent; a test may drive a page in a browser by it."""

    def start(self, connection: Connection) -> None:
        """Have the agent connect; returns at once or when it runs. What it kept in ``connection.state`` is used."""

    def stop(self) -> None:
        """Ask it to end in good order, and wait until it has; nothing where it does not run.

        Raises:
            NotApplicable: nobody but its owner can end it; also :meth:`kill`.
        """

    def kill(self) -> None:
        """End it at once, without a goodbye; nothing where it does not run."""

    def public_key(self) -> bytes:
        """The key (SPKI, DER) with which the running agent signs its messages; empty where it signs none."""
