"""Commands of one provisioning on its host: run, timed by step, their failures told, and what they changed kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coordinator.fleet.commands import CHANGED
from coordinator.fleet.host import CommandFailed, Host, HostLost

NO_SPACE = "No space left on device"
NOTE = "note "


class Steps:
    """The steps of one run, in order.

    Attributes:
        changed: names of the steps that changed something.
        seconds: name -> how long it took.
        finished: names of those that were done to their end.
    """

    def __init__(self, host: Host, tell: Callable[[str], None]) -> None:
        self.host = host
        self.tell = tell
        self.changed: list[str] = []
        self.seconds: dict[str, float] = {}
        self.finished: list[str] = []
        self._current = ""

    @contextmanager
    def step(self, name: str, doing: str) -> Iterator[None]:
        """Times what is done in it; a lost connection tells how far it came."""
        self._current = name
        started = time.monotonic()
        self.tell(f"{name}: {doing}")
        try:
            yield
        except HostLost as error:
            done = ", ".join(self.finished) or "nothing"
            raise HostLost(
                f"{error}; it was at the step '{name}', finished before: {done}",
                hint="what is there is kept: the same command goes on from it when the host is back",
            ) from error
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started
        self.finished.append(name)

    def mark(self) -> None:
        """The step that runs changed something."""
        if self._current not in self.changed:
            self.changed.append(self._current)

    async def run(self, text: str, *, timeout_s: float = 120.0) -> list[str]:
        """The lines a step's text prints, without those that say it changed something or are for the owner.

        Raises:
            CommandFailed: it did not end with status 0.
            HostLost: the connection ended.
        """
        lines = (await run_text(self.host, text, self._current, timeout_s=timeout_s)).splitlines()
        if CHANGED in lines:
            self.mark()
        for line in lines:
            if line.startswith(NOTE):
                self.tell(line.removeprefix(NOTE))
        return [line for line in lines if line != CHANGED and not line.startswith(NOTE)]


async def run_text(host: Host, text: str, what: str, *, timeout_s: float = 120.0) -> str:
    """What ``text`` prints.

    Raises:
        CommandFailed: it did not end with status 0; the message has its last words.
        HostLost: the connection ended.
    """
    done = await host.run(text, timeout_s=timeout_s)
    if done.status:
        words = (done.stderr.strip() or done.stdout.strip() or "it said nothing")[-600:]
        raise CommandFailed(
            f"{host.name}: the step '{what}' failed with status {done.status}: {words}", hint=advice(done.stderr)
        )
    return done.stdout


def advice(stderr: str) -> str:
    """The next step after a command's failure."""
    if NO_SPACE in stderr:
        return "free some space there, or give a --folder on another disk; the same command goes on from there"
    if "Permission denied" in stderr or "Read-only file system" in stderr:
        return "give a --folder that its user may write"
    return "see what the host says; the same command goes on from there"
