"""Local agents that ended by a signal or an error are started again, so that a run goes on with all its devices.

An agent finds its store as it left it: an order that it had is begun again or its update sent. A device elsewhere has a
service of its machine for that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from coordinator.local_devices.processes import LocalDevice
from edge.contracts.errors import ApportionError

log = logging.getLogger("apportion.agents")

LOOK_S = 0.5
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""Before an agent is started again; each start within :data:`HOUR_S` doubles the wait before the next one."""
MOST_STARTS, HOUR_S = 6, 3600.0
"""An agent that ended more often than this in so many seconds stays away."""

STOPPED, BAD_ARGUMENTS = 0, 2
"""Exit statuses after which an agent is left alone: it was told to end, or would end so again."""


class Agents(Protocol):
    """What is looked after (:class:`coordinator.local_devices.processes.LocalDevices`)."""

    @property
    def devices(self) -> Sequence[LocalDevice]:
        """All of them."""

    def exited(self) -> dict[str, int]:
        """Device -> exit status of those that ended by themselves; of a signal its negative number."""

    def start(self, device: LocalDevice) -> None:
        """Start the agent of ``device`` in place of the one that ended."""


@dataclass
class _Ended:
    """What became of one device's agents: when they were started again, and when the next one is."""

    starts: list[float] = field(default_factory=list)
    next_at: float | None = None
    is_over: bool = False


class AgentKeeper:
    """Looks after ``agents`` while the context is open, which is within the agents' own.

    Args:
        say: told in a line of each agent that is started again, or no more.
        record: told the same as an event and its values.
        now: seconds of a clock that only goes forward.
    """

    def __init__(
        self,
        agents: Agents,
        say: Callable[[str], None],
        record: Callable[..., None] = lambda event, **values: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._agents = agents
        self._say = say
        self._record = record
        self._now = now
        self._known = {device.device: _Ended() for device in agents.devices}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="agent keeper", daemon=True)

    def __enter__(self) -> AgentKeeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def stopped(self) -> dict[str, int]:
        """Device -> exit status of the agents that ended cleanly or with bad arguments, and stay away."""
        return {name: status for name, status in self._agents.exited().items() if status in (STOPPED, BAD_ARGUMENTS)}

    def look(self) -> None:
        """Plan a start of each agent that has ended since the last look, and start those whose wait is over."""
        now, ended = self._now(), self._agents.exited()
        for device in self._agents.devices:
            known, status = self._known[device.device], ended.get(device.device)
            if known.next_at is not None:
                if now >= known.next_at:
                    self._start(device, known, now)
            elif not known.is_over and status not in (None, STOPPED, BAD_ARGUMENTS):
                self._plan(device.device, known, f"ended {how_it_ended(status or 0)}", now, status=status)

    def _plan(self, name: str, known: _Ended, what: str, now: float, **values: Any) -> None:
        known.starts = [at for at in known.starts if now - at < HOUR_S]
        count = len(known.starts)
        if count >= MOST_STARTS:
            known.is_over = True
            self._say(
                f"the agent of {name} {what}, and was started again {count} times within the hour: it stays away; "
                "see agent.log in its folder"
            )
            self._record("agent-given-up", device=name, starts=count, **values)
            return
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**count)
        known.next_at = now + wait_s
        self._say(f"the agent of {name} {what}: it is started again in {wait_s:g} s; see agent.log in its folder")
        self._record("agent-restart", device=name, starts=count + 1, wait_s=wait_s, **values)

    def _start(self, device: LocalDevice, known: _Ended, now: float) -> None:
        known.next_at = None
        known.starts.append(now)
        try:
            self._agents.start(device)
        except (ApportionError, OSError) as error:
            self._plan(device.device, known, f"does not start ({error})", now)

    def _keep(self) -> None:
        while not self._over.wait(LOOK_S):
            try:
                self.look()
            except OSError as error:  # a full disk takes no line of metrics.jsonl; the next look tries again
                log.warning("local agents cannot be looked after now: %s", error)


def how_it_ended(status: int) -> str:
    """An exit status in words: ``by signal 9`` or ``with status 1``."""
    return f"by signal {-status}" if status < 0 else f"with status {status}"
