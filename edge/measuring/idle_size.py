"""What an agent's two processes weigh before any work: measured in real child processes, for plans without a device."""

from __future__ import annotations

import queue
import subprocess
import sys

from edge.contracts.errors import DeviceRefused
from edge.supervisor.native_trainer import NativeTrainer
from edge.supervisor.trainer_link import TrainerEnded, TrainerEvent, TrainerLink, TrainerSaid, child_environment
from edge.supervisor.trainer_messages import Ready

_SUPERVISOR = (
    "from edge.system.startup_pages import SUPERVISOR_MODULES, import_in_stages;"
    "import_in_stages(*SUPERVISOR_MODULES);"
    "from edge.system.meter import peak_rss_bytes; print(peak_rss_bytes())"
)
TIMEOUT_S = 300.0
"""A runtime may build its library at the first start, on a device that has other work."""


def measure_idle_sizes(runtime: str, *, python: str = sys.executable) -> tuple[int, int]:
    """Resident bytes of a supervisor that has imported everything, and of a trainer with ``runtime`` loaded.

    Args:
        python: interpreter that runs the trainer; the supervisor is this one's.

    Raises:
        DeviceRefused: one of the two does not start here.
    """
    told = subprocess.run(
        [sys.executable, "-c", _SUPERVISOR], capture_output=True, text=True, env=child_environment(), check=False
    )
    if told.returncode:
        raise DeviceRefused(f"a supervisor does not start with {sys.executable}: {told.stderr.strip()[-300:]}")
    events: queue.SimpleQueue[TrainerEvent] = queue.SimpleQueue()
    link = TrainerLink(python=python, runtime=runtime, deliver=events.put)
    link.start()
    try:
        event = events.get(timeout=TIMEOUT_S)
    except queue.Empty as error:
        raise DeviceRefused(f"a trainer with runtime '{runtime}' says nothing within {TIMEOUT_S:.0f} s") from error
    finally:
        link.end()
    if isinstance(event, TrainerSaid) and isinstance(event.reply, Ready):
        return int(told.stdout), event.reply.rss_bytes
    reason = event.reason if isinstance(event, TrainerEnded) else "it did not say ready"
    raise DeviceRefused(f"a trainer with runtime '{runtime}' does not start with {python}: {reason}")


def native_idle_bytes(runtime: str, *, python: str = sys.executable) -> int:
    """Resident bytes, before orders, of the trainer without Python in the environment of ``python``; 0: none there."""
    native = NativeTrainer(runtime, python)
    ready = native.hello() if native.is_found() else None
    return 0 if ready is None else ready.rss_bytes
