"""The devices of a federation as the coordinator knows them: who is present, with what profile, and who takes part.

Presence is heartbeat and will together, never will alone: a broker may lose a will, a device may hang without one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from coordinator.planning.planner import choose_runtimes
from edge.contracts.errors import DeadlineExpired, MessageRejected, PlanError
from edge.contracts.messages import Heartbeat, Hello
from edge.contracts.streams import permutation, stream_seed
from profiles.budget import budget_in_words

PRESENCE_S = 60.0
"""A device unheard of for this long is away; agents send a heartbeat every few seconds."""

MOST_DEVICES = 100_000
"""Devices that are remembered. With an identity brokers let in those that were enrolled; without one anybody has a
name, and as many as a password's owner makes up. One that is away makes room; nobody who is here does."""

CROWD, LOOK_S = 500, 0.1
"""With more devices than this who is here is looked at only so often while others are awaited."""


@dataclass(frozen=True, slots=True)
class Member:
    """One device: its last hello, its last heartbeat, and when anything was heard (monotonic seconds)."""

    hello: Hello
    heard_at: float
    heartbeat: Heartbeat | None = None
    away_reason: str = ""
    runtime_error: str = ""

    def is_present(self, now: float) -> bool:
        """Whether the device was heard of lately and did not say bye."""
        return not self.away_reason and now - self.heard_at <= PRESENCE_S


class Cohort:
    """Members by device id. Written by the inbox's thread, read by the round's; every method takes the lock.

    Args:
        runtimes: those the run allows, in order of preference; empty = any.
        needs: abilities that a device must have.
        unfit: why a device cannot take part, whatever it says of itself; empty when it can.
    """

    def __init__(
        self,
        runtimes: Sequence[str] = (),
        needs: Sequence[str] = (),
        unfit: Callable[[str], str] = lambda device: "",
    ) -> None:
        self._runtimes = tuple(runtimes)
        self._needs = tuple(needs)
        self._unfit = unfit
        self._members: dict[str, Member] = {}
        self._arrivals = 0
        self._changed = threading.Condition()

    def greet(self, hello: Hello) -> None:
        """A hello arrived.

        Raises:
            MessageRejected: so many devices are here that there is no room for another.
        """
        self._make_room(hello.device)
        self._put(hello.device, Member(hello, time.monotonic(), runtime_error=self.unusable_for(hello)))

    def _make_room(self, device: str) -> None:
        with self._changed:
            if device in self._members or len(self._members) < MOST_DEVICES:
                return
            now = time.monotonic()
            away = [name for name, member in self._members.items() if not member.is_present(now)]
            if not away:
                raise MessageRejected(f"{MOST_DEVICES} devices are here already; {device} cannot take part")
            for name in away:
                self._forget(name)

    def _forget(self, device: str) -> None:
        """Called with the lock held."""
        del self._members[device]

    def beat(self, device: str, heartbeat: Heartbeat) -> bool:
        """A heartbeat arrived; False when the device never said hello, and nothing changes."""
        with self._changed:
            member = self._members.get(device)
        if member is None:
            return False
        self._put(device, replace(member, heartbeat=heartbeat, heard_at=time.monotonic(), away_reason=""))
        return True

    def leave(self, device: str, reason: str) -> None:
        """A bye or last will arrived."""
        with self._changed:
            member = self._members.get(device)
        if member is not None:
            self._put(device, replace(member, away_reason=reason or "bye"))

    def _put(self, device: str, member: Member) -> None:
        with self._changed:
            before = self._members.get(device)
            self._members[device] = member
            if before is None or before.hello is not member.hello or before.away_reason != member.away_reason:
                self._arrivals += 1
                self._changed.notify_all()

    def members(self) -> list[Member]:
        """Everyone who is remembered, present or not, by device id."""
        with self._changed:
            found = list(self._members.values())
        return sorted(found, key=lambda member: member.hello.device)

    def member(self, device: str) -> Member | None:
        """The member called ``device``, present or not."""
        with self._changed:
            return self._members.get(device)

    def present(self, *, usable_only: bool = True) -> list[Hello]:
        """Hellos of the devices that are here, by device id; those that cannot take part left out: they cannot read
        their data, or have no runtime of this run."""
        return [m.hello for m in self._here() if not usable_only or not (m.hello.data_error or m.runtime_error)]

    def _here(self) -> list[Member]:
        now = time.monotonic()
        with self._changed:
            here = [member for member in self._members.values() if member.is_present(now)]
        return sorted(here, key=lambda member: member.hello.device)

    def data_errors(self) -> dict[str, str]:
        """Device -> why its data cannot be read, of the devices that are here."""
        return {m.hello.device: m.hello.data_error for m in self._here() if m.hello.data_error}

    def runtime_errors(self) -> dict[str, str]:
        """Device -> which runtimes it has and which the run allows, of the devices that are here and have none."""
        return {m.hello.device: m.runtime_error for m in self._here() if m.runtime_error}

    def unusable_for(self, hello: Hello) -> str:
        """Why the device of ``hello`` cannot take part, as far as is known of it here; empty when it can."""
        try:
            if self._runtimes:
                choose_runtimes(hello.profile, self._runtimes)
        except PlanError as error:
            return str(error)
        if missing := sorted(set(self._needs) - set(hello.abilities)):
            return (
                f"{hello.device} lacks what this run needs: {', '.join(missing)} (pip install -U 'apportion[identity]')"
            )
        return self._unfit(hello.device)

    def arrival(self, hello: Hello) -> str:
        """One line for people about a device that has come: what it has, and why it cannot take part if it cannot."""
        has = ", ".join([f"{hello.num_examples} examples", *sorted(hello.runtimes)])
        line = f"{hello.device} is here: budget {budget_in_words(hello.profile.budget_bytes)}, {has}"
        trouble = f", data: {hello.data_error}" if hello.data_error else ""
        mismatch = self.unusable_for(hello)
        return line + trouble + (f"; {mismatch}" if mismatch else "")

    def wait_for(
        self,
        count: int,
        timeout_s: float,
        *,
        least: int | None = None,
        meanwhile: Callable[[Sequence[Hello]], bool] = lambda here: False,
        eligible: Callable[[list[str]], Sequence[str]] = lambda devices: devices,
    ) -> list[Hello]:
        """The present devices once there are at least ``count``, or ``least`` after ``timeout_s`` seconds.

        Devices that are here and cannot take part are not waited for once ``least`` others are here. Those that may not
        take part are no devices until the time is over: a barred one does not stand for one that is yet to come.

        Args:
            least: devices a round can do with; ``count`` when None.
            eligible: those of the devices that may take part; asked whenever others are here.
            meanwhile: work for those that are here while others are awaited, a piece at a time; False when there is
                none now. The time it takes is added to the wait.

        Raises:
            DeadlineExpired: fewer than ``least`` then; the message names those that are here.
        """
        least = count if least is None else min(least, count)
        give_up_at = time.monotonic() + timeout_s
        seen: list[str] = []
        aside = 0
        while True:
            with self._changed:
                arrivals = self._arrivals
            here = self.present()
            if seen != (now_here := [hello.device for hello in here]):
                seen, aside = now_here, len(here) - len(eligible(now_here))
            unusable, without_runtime = self.data_errors(), self.runtime_errors()
            began = time.monotonic()
            left = give_up_at - began
            counted, not_awaited = len(here) - aside, len({*unusable, *without_runtime}) + aside
            if counted >= count or (counted >= least and counted + not_awaited >= count):
                return here
            if left <= 0 and len(here) >= least:
                return here
            if left <= 0:
                break
            if meanwhile(here):
                give_up_at += time.monotonic() - began
                continue
            with self._changed:
                if self._arrivals == arrivals:
                    self._changed.wait(min(left, 1.0))
                crowd = len(self._members)
            if crowd > CROWD:
                time.sleep(min(left, LOOK_S))  # thousands come at once, and each look goes through all of them
        names = ", ".join(h.device for h in here) or "none"
        why = "".join(f"; {device} cannot read its data: {error}" for device, error in unusable.items())
        why += "".join(f"; {error}" for error in without_runtime.values())
        raise DeadlineExpired(
            f"{len(here)} of {count} devices said hello within {timeout_s:.0f} s ({names}){why}; "
            "start more agents, or lower cohort.size or cohort.min-reports"
        )


def select(devices: list[str], count: int, *, seed: int, round_index: int, attempt: int) -> list[str]:
    """``count`` of ``devices``, drawn without replacement from the round's own stream, returned by id.

    The same devices, seed, round and attempt give the same selection whatever order they arrived in.
    """
    ordered = sorted(devices)
    if count >= len(ordered):
        return ordered
    order = permutation(stream_seed(seed, f"select/{attempt}", round_index), len(ordered))
    return sorted(ordered[i] for i in order[:count])
