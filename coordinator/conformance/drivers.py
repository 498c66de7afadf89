"""Agents as the kit starts them: by a command of one's own, or by hand."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import msgspec

from coordinator.conformance.connection import Connection
from coordinator.conformance.findings import NotApplicable
from edge.contracts.errors import ConfigError

OWN_AGENT = (
    "apportion agent --broker {broker} --ca {ca} --federation {federation} --device {device} --data {data} "
    "--store {state} --trust {trust_file} --budget-mb {budget_mb} --runtime {runtime}"
)
"""The Python agent, over TLS: ``{ca}`` in a command asks for it."""

_STOP_S = 15.0


class CommandDriver:
    """Starts the agent by a command, on this machine.

    Args:
        template: words with placeholders in braces, fields of :class:`Connection`; the same come in the environment as
            ``CONFORMANCE_...``.
        log: what the agent says on stdout and stderr.

    Raises:
        ConfigError: a placeholder that nobody knows, or no such program.
    """

    def __init__(self, template: str, log: Path) -> None:
        self._words = shlex.split(template)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._file: IO[bytes] | None = None
        if not self._words:
            raise ConfigError(["--agent: no command"])
        if self._words[0] == "apportion":
            self._words[:1] = [sys.executable, "-m", "edge"]
        elif shutil.which(self._words[0]) is None:
            raise ConfigError([f"--agent: no program {self._words[0]}"])
        known = sorted((*Connection.__struct_fields__, "broker", "host", "port"))
        try:
            for word in self._words:
                word.format(**dict.fromkeys(known, ""))
        except (KeyError, IndexError, ValueError) as error:
            raise ConfigError([f"--agent: placeholder {error} is unknown, known are {', '.join(known)}"]) from error

    def start(self, connection: Connection) -> None:
        """As :meth:`coordinator.conformance.connection.AgentDriver.start`."""
        values = connection.placeholders()
        Path(connection.state).mkdir(parents=True, exist_ok=True)
        self._file = self._log.open("ab")
        self._process = subprocess.Popen(
            [word.format(**values) for word in self._words],
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=self._file,
            env=os.environ | {f"CONFORMANCE_{name.upper()}": value for name, value in values.items()},
            start_new_session=True,
        )

    def stop(self) -> None:
        """As :meth:`coordinator.conformance.connection.AgentDriver.stop`."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S)
        self.kill()

    def kill(self) -> None:
        """As :meth:`coordinator.conformance.connection.AgentDriver.kill`: its whole process group."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if self._file is not None:
            self._file.close()
            self._file = None

    def public_key(self) -> bytes:
        """None: whoever starts an agent by a command need not sign its messages."""
        return b""


class AttachedDriver:
    """An agent that somebody else starts, once it has been told where to connect.

    Args:
        tell: gets the connection as JSON when the agent is wanted for the first time.
        hook: a command; ``start``, ``stop`` or ``kill`` is added to it, the connection comes as JSON on its stdin. It
            returns when that is done. Empty: the agent stays as it is, and what needs it ended is not applicable.
    """

    def __init__(self, *, hook: str = "", tell: IO[str] | None = None) -> None:
        self._hook = shlex.split(hook)
        self._tell = tell or sys.stdout
        self._connection: Connection | None = None

    def start(self, connection: Connection) -> None:
        """As :meth:`coordinator.conformance.connection.AgentDriver.start`."""
        is_first, self._connection = self._connection is None, connection
        if is_first:
            print(msgspec.json.encode(connection).decode(), file=self._tell, flush=True)
        if self._hook:
            self._call("start")

    def stop(self) -> None:
        """As :meth:`coordinator.conformance.connection.AgentDriver.stop`."""
        self._call("stop")

    def kill(self) -> None:
        """As :meth:`coordinator.conformance.connection.AgentDriver.kill`."""
        self._call("kill")

    def public_key(self) -> bytes:
        """None."""
        return b""

    def _call(self, action: str) -> None:
        if not self._hook:
            raise NotApplicable("the agent is attached by hand, which the kit cannot end or start; give --restart")
        if self._connection is not None:
            subprocess.run([*self._hook, action], input=msgspec.json.encode(self._connection), check=True, timeout=60.0)
