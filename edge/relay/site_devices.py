"""The devices of a site as its relay knows them, and the one profile that stands for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from edge.contracts.messages import Hello
from edge.relay.settings import RelaySettings
from profiles.device import DeviceProfile


@dataclass(frozen=True)
class _Member:
    hello: Hello
    heard_at: float
    is_away: bool = False


class SiteDevices:
    """Hellos by device id; times are seconds on the monotonic clock."""

    def __init__(self, settings: RelaySettings) -> None:
        self._settings = settings
        self._members: dict[str, _Member] = {}

    def greet(self, hello: Hello, now: float) -> None:
        """A hello arrived."""
        self._members[hello.device] = _Member(hello, now)

    def beat(self, device: str, now: float) -> bool:
        """Something else arrived; False when the device never said hello, and nothing changes."""
        member = self._members.get(device)
        if member is not None:
            self._members[device] = replace(member, heard_at=now, is_away=False)
        return member is not None

    def leave(self, device: str) -> None:
        """A bye or last will arrived."""
        if device in self._members:
            self._members[device] = replace(self._members[device], is_away=True)

    def hello(self, device: str) -> Hello | None:
        """The last hello of ``device``, here or not."""
        return self._members[device].hello if device in self._members else None

    def heard_at(self, device: str) -> float:
        """When ``device`` was last heard of; 0 when it never was."""
        return self._members[device].heard_at if device in self._members else 0.0

    def served(self, now: float) -> list[Hello]:
        """Hellos of the devices that are here and can be given orders, by device id."""
        here = [m.hello for m in self._members.values() if not m.is_away and now - m.heard_at <= self._settings.away_s]
        return sorted((hello for hello in here if self._is_served(hello)), key=lambda hello: hello.device)

    def _is_served(self, hello: Hello) -> bool:
        profile, least = hello.profile, self._settings.least_budget_bytes
        has_runtime = profile.trainer_idle_bytes.get(self._settings.runtime, 0) > 0
        has_budget = not profile.budget_bytes or profile.budget_bytes >= least
        return has_runtime and has_budget and hello.num_examples > 0 and not hello.data_error


def site_profile(device: str, runtime: str, hellos: Sequence[Hello]) -> DeviceProfile:
    """What every one of the devices can afford: the smallest of each limit, the largest of each need."""
    profiles = [hello.profile for hello in hellos]
    first = profiles[0]
    threads = [p.max_threads[runtime] for p in profiles if runtime in p.max_threads]
    return DeviceProfile(
        device=device,
        budget_bytes=_least(p.budget_bytes for p in profiles),
        ram_bytes=_least(p.ram_bytes for p in profiles),
        memory_limit_bytes=_least(p.memory_limit_bytes or 0 for p in profiles) or None,
        cpu_count=min(p.cpu_count for p in profiles),
        cpu_model=first.cpu_model,
        machine=first.machine,
        system=first.system,
        storage_free_bytes=_least(p.storage_free_bytes for p in profiles),
        supervisor_idle_bytes=max(p.supervisor_idle_bytes for p in profiles),
        trainer_idle_bytes={runtime: max(p.trainer_idle_bytes[runtime] for p in profiles)},
        max_threads={runtime: min(threads)} if threads else {},
        runtimes=dict(hellos[0].runtimes),
        probed_at=max(p.probed_at for p in profiles),
    )


def _least(values: Iterable[int]) -> int:
    """The smallest of those that are known; 0 when none is."""
    return min(filter(None, values), default=0)
