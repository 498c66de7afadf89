"""FederatedScope's side of the work."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.peers.processes import CLIENT, SERVER
from benchmarks.peers.sides import APPS, DEVICES, ended_rounds, spawn


@dataclass
class FederatedScope:
    """A server and eight clients in distributed mode, each a gRPC server of its own."""

    folder: Path
    rounds: int
    python: Path
    has_short_connections: ClassVar[bool] = True

    def start(self) -> None:
        """Nine commands."""
        self.start_server_again()
        time.sleep(2.0)  # as the peer's own script does: a client that finds no server ends
        for device in range(DEVICES):
            self.start_device_again(device)

    def _start(self, name: str, **values: str) -> None:
        app, settings = APPS / "federatedscope", self.folder / f"{name}.yaml"
        text = (app / "settings.yaml").read_text()
        for key, value in values.items():
            text = re.sub(rf"(?m)^  {key}: .*$", f"  {key}: {value}", text)
        settings.write_text(text)
        words = ["federate.total_round_num", str(self.rounds), "federate.save_to", str(self.model_file())]
        command = [str(self.python), str(app / "start.py"), "--cfg", str(settings), *words]
        spawn(command, self.folder / f"{name}.log", cwd=self.folder, PYTHONUNBUFFERED="1")

    def role(self, command: str) -> str:
        """By its settings' file."""
        if "/client-" in command:
            return CLIENT
        return SERVER if "/server.yaml" in command else ""

    def mark(self, device: int) -> str:
        """Its settings' file."""
        return f"/client-{device}.yaml"

    def rounds_over(self) -> int:
        """By the server's log: a round is over when the next begins."""
        log = self.folder / "server.log"
        text = log.read_text() if log.exists() else ""
        return ended_rounds(text, r"Round #(\d+)\) -----", first=0, is_over=self.is_over())

    def is_over(self) -> bool:
        """The model is written last."""
        return self.model_file().exists()

    def model_file(self) -> Path:
        """A state dict as torch writes it."""
        return self.folder / "final.pt"

    def start_server_again(self) -> None:
        """The same command."""
        self._start("server")

    def start_device_again(self, device: int) -> None:
        """The same command."""
        port, share = str(50052 + device), f"shares/site-{device + 1}.npz"
        self._start(f"client-{device}", role="client", data_idx=str(device + 1), client_port=port, file_path=share)
