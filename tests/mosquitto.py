"""A Mosquitto that a test runs by itself, from a configuration of its own, on a port that is free."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from coordinator.brokers.listening import PortTaken, listens, on_free_ports, tells_of_taken_port
from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.brokers.settings import free_port

WAIT_S = 10.0


@contextlib.contextmanager
def running_mosquitto(
    write: Callable[[int], Path], *, cwd: Path | None = None, more_ports: Callable[[], list[int]] = list
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The process and its port, while the context is open.

    Args:
        write: writes the configuration for a port; called again where another process had that port first.
        more_ports: where the configuration that was written last has it listen, too.
    """
    program = find_mosquitto()
    assert program is not None, "mosquitto is not installed here (Debian: mosquitto); skip the test"
    port = free_port()

    def choose() -> None:
        nonlocal port
        port = free_port()

    def start() -> subprocess.Popen[bytes]:
        config = write(port)
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen([program, "-c", config], cwd=cwd, stdin=subprocess.DEVNULL, stderr=log)
            give_up_at = time.monotonic() + WAIT_S
            while process.poll() is None and not listens(process.pid, [port, *more_ports()]):
                assert time.monotonic() < give_up_at, "mosquitto does not listen"
                time.sleep(0.02)
            if process.poll() is None:
                return process
            log.seek(0)
            words = log.read().decode()
            raise (PortTaken if tells_of_taken_port(words) else AssertionError)(f"mosquitto ended: {words}")

    process = on_free_ports(start, choose)
    try:
        yield process, port
    finally:
        process.terminate()
        process.wait(WAIT_S)
