"""A process of light devices as its parent sees it: started, asked for its figures, ended."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec

from coordinator.loadtest.figures import Figures
from coordinator.loadtest.population import Event, Settings
from edge.contracts.errors import BrokerUnreachable

END_S = 30.0


class DeviceProcess:
    """Light devices in a child process, for as long as its context is open."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._connected = threading.Event()
        self._failure = ""
        self.figures = Figures()

    def __enter__(self) -> DeviceProcess:
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        command = [sys.executable, "-m", "coordinator.loadtest.population"]
        parent = [sys.executable, "-m", "coordinator.brokers.parent_death", str(os.getpid())]
        self._process = subprocess.Popen(
            [*parent, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"),
        )
        self._reader = threading.Thread(target=self._read, name="light devices", daemon=True)
        self._reader.start()
        # Through a pipe: the password is in it.
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(self._settings) + b"\n")
        self._process.stdin.flush()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def wait_connected(self, timeout_s: float) -> bool:
        """Whether all its devices are connected, within ``timeout_s``.

        Raises:
            BrokerUnreachable: one of them could not.
        """
        is_connected = self._connected.wait(max(0.0, timeout_s))
        self.check()
        return is_connected

    def check(self) -> None:
        """Nothing while it runs.

        Raises:
            BrokerUnreachable: it ended by itself.
        """
        if self._failure or self._process.poll() is not None:
            raise BrokerUnreachable(self._failure or f"light devices ended with status {self._process.poll()}")

    def end(self) -> Figures:
        """Disconnect the devices and end the process; its last figures. May be called again."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5.0)
        return self.figures

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = msgspec.json.decode(line, type=Event)
            if event.event == "failed":
                self._failure = event.message
            else:
                self.figures = event.figures
            if event.event in ("connected", "failed"):
                self._connected.set()
        self._connected.set()
