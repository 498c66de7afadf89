"""What a forked process does: the command line of a coordinator or of a device, with its points told to the scheduler.

A process waits at each point until it is told to go on, so that a fault hits it exactly there. Nothing of the product
is replaced; waits that only cost time here are shorter (:data:`SHORTER`), and the wall clock can be moved.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import json
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.chaos.faults import DURABLE_WRITE

SHORTER = {
    "edge.transfer.uploader:REPEAT_S": 1.0,
    "edge.transport.blocks:FIRST_TIMEOUT_S": 0.5,
    "edge.supervisor.gate:CHECK_S": 0.5,
    "coordinator.rounds.collecting:REANNOUNCE_S": 1.5,
}
"""Module and constant -> seconds, in every process of a run. A device's heartbeat comes every second, too."""


PRELOADED = (
    "torch._dynamo",
    "torch.distributed",
    "coordinator.",
    "export.",
    "edge.",
    "sklearn.datasets",
    "onnx.",
    "scipy.",
)
"""What a coordinator imported while it ran is imported before the next ones are forked, if it is of these."""


class Line:
    """The line to the scheduler: a point passed, and the answer to it."""

    def __init__(self, control: socket.socket) -> None:
        self._file = control.makefile("rwb", buffering=0)
        self._lock = threading.Lock()
        self._offset_s = 0.0

    def passed(self, name: str) -> None:
        """Tell of a point and wait for leave to go on; the clock may have jumped by then."""
        with self._lock:
            self._file.write(f"{name}\n".encode())
            answer = self._file.readline().split()
            if not answer:
                os._exit(1)  # the scheduler is gone
            self._offset_s += float(answer[0])

    def move_clock(self) -> None:
        """Let ``time.time`` follow the jumps; the monotonic clock stays."""
        real = time.time
        time.time = lambda: real() + self._offset_s


def _shorten() -> None:
    for name, seconds in SHORTER.items():
        module, constant = name.split(":")
        found = importlib.import_module(module)
        if not isinstance(getattr(found, constant, None), float):
            raise RuntimeError(f"{name} is not there any more; see which constant tests/chaos has to shorten now")
        setattr(found, constant, seconds)


def coordinator(request: dict[str, Any], control: socket.socket) -> int:
    """``apportion ARGUMENTS`` with every point told; blobs are copied aside before the run may release them."""
    from coordinator.cli import open_run
    from coordinator.cli.command import main

    _shorten()
    line, blobs, aside = Line(control), Path(request["blobs"]), Path(request["aside"])
    line.move_clock()
    chosen = open_run.RunOptions

    def on_point(name: str) -> None:
        if name in ("aggregating", "before-commit", "committed"):
            keep_blobs(blobs, aside)
        line.passed(name)

    def options(*args: Any, **kwargs: Any) -> Any:
        return dataclasses.replace(chosen(*args, **kwargs), on_point=on_point)

    open_run.RunOptions = options  # type: ignore[misc, assignment]
    if request["signing"]:
        _sign_with(Path(request["signing"]))
    if request["tells_writes"]:
        _tell_durable_writes(line)
    plant = request.get("plant")
    if plant:
        from tests.chaos.planted_bugs import PLANTED

        PLANTED[plant]()
    status = main(request["arguments"])
    if request["modules"]:
        own = [name for name, module in list(sys.modules.items()) if module and name.startswith(PRELOADED)]
        Path(request["modules"]).write_text(json.dumps([n for n in own if _is_importable(n)]), encoding="utf-8")
    return status


def _sign_with(folder: Path) -> None:
    """Sign as a coordinator with an identity does, without the broker that goes with one: relays must see messages."""
    from coordinator.cli import federation_parts
    from coordinator.identity.signing import SigningKey

    federation_parts.signer = lambda config: SigningKey.load(folder)


def _tell_durable_writes(line: Line) -> None:
    """Pass a point behind everything that is on disk from then on: what is written next finds it as it is left."""
    from coordinator.ledger.database import LedgerFile

    sync, write = os.fsync, LedgerFile.transaction

    def synced(descriptor: Any) -> None:
        sync(descriptor)
        line.passed(DURABLE_WRITE)

    @contextlib.contextmanager
    def written(file: LedgerFile, **values: Any) -> Iterator[Any]:
        with write(file, **values) as connection:
            yield connection
        line.passed(DURABLE_WRITE)

    os.fsync = synced
    LedgerFile.transaction = written  # type: ignore[method-assign, assignment]


def _is_importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ValueError, ImportError):
        return False


def device(request: dict[str, Any], control: socket.socket) -> int:
    """``apportion agent ARGUMENTS`` with every move of its state machine told."""
    from edge.commands.agent import agent_command
    from edge.supervisor.settings import AgentSettings
    from edge.supervisor.states import StateMachine

    _shorten()
    line = Line(control)
    line.move_clock()
    defaults = AgentSettings.__init__.__kwdefaults__
    assert "heartbeat_s" in defaults, "AgentSettings has no heartbeat_s any more"
    defaults["heartbeat_s"] = 1.0
    move = StateMachine.move

    def told(machine: StateMachine, name: Any) -> Any:
        state = move(machine, name)
        line.passed(name)
        return state

    StateMachine.move = told  # type: ignore[method-assign]
    return agent_command(request["arguments"])


def keep_blobs(blobs: Path, aside: Path) -> None:
    """Copy every whole blob that is not aside yet, so that the audit has what the run releases.

    A damaged one is left: the device that trains again may send the same bytes, whole, under the same digest.
    """
    for path in blobs.glob("??/*"):
        kept = aside / path.name
        if not kept.exists():
            temporary = aside / f"{path.name}.tmp"
            shutil.copyfile(path, temporary)
            if hashlib.sha256(temporary.read_bytes()).hexdigest() == path.name:
                temporary.rename(kept)


def command(request: dict[str, Any], control: socket.socket) -> int:
    """``apportion ARGUMENTS`` and nothing else."""
    from coordinator.cli.command import main

    return main(request["arguments"])


def liar(request: dict[str, Any], control: socket.socket) -> int:
    """A party that lies; it passes no points, and ends when it is killed."""
    from tests.chaos.liars.client import Client, run
    from tests.chaos.liars.lies import LIES

    client = Client(request["url"], request["federation"], request["device"])
    lies = LIES[request["kind_of_liar"]]
    run(client, lies(client, request["variant"], is_compared=request["is_compared"], victims=request["victims"]))
    return 0


CHILDREN: dict[str, Callable[[dict[str, Any], socket.socket], int]] = {
    "coordinator": coordinator,
    "device": device,
    "command": command,
    "liar": liar,
}
