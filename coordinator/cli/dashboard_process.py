"""The dashboard beside a run: ``apportion watch`` as a child, so that it takes no time of the rounds."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

END_S = 5.0


@contextlib.contextmanager
def dashboard_process(run_dir: Path, port: int) -> Iterator[None]:
    """Serves the run in ``run_dir`` on the loopback while the context is open; ``port`` 0: a free one.

    It says its address and its token on stderr, and ends with this process.
    """
    command = [sys.executable, "-m", "edge", "watch", str(run_dir), "--port", str(port)]
    guarded = [sys.executable, "-m", "coordinator.brokers.parent_death", str(os.getpid()), *command]
    process = subprocess.Popen(guarded, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno())
    try:
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        if process.poll() is None:
            process.kill()
            process.wait()
