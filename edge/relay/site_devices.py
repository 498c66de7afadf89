"""The devices of a site as its relay knows them, and the one profile that stands for them."""

from __future__ import annotations

import logging
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from edge.contracts.errors import MessageRejected
from edge.contracts.messages import Hello
from edge.relay.settings import RelaySettings
from profiles.device import DeviceProfile

log = logging.getLogger("apportion.relay")

APART = 16
"""A device that has so many times less than the median of its site, or needs so many times more, is not served by it:
what every device can afford is what the least of them can, and one that lies would shut out its site. A board of 512 MB
beside ones of 8 GB is no lie."""
MOST_OF_MEDIAN = 16
"""A device's update weighs at most so many times the median of its site."""
MOST_DEVICES = 10_000
"""That a relay knows; who was unheard of for longest makes room, and nobody who is here."""


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
        self._told: dict[str, str] = {}

    def greet(self, hello: Hello, now: float) -> None:
        """A hello arrived.

        Raises:
            MessageRejected: there are too many devices already.
        """
        if hello.device not in self._members and len(self._members) >= MOST_DEVICES:
            oldest = min(self._members.values(), key=lambda member: (not member.is_away, member.heard_at))
            if not oldest.is_away and now - oldest.heard_at <= self._settings.away_s:
                raise MessageRejected(f"this site has {MOST_DEVICES} devices already; {hello.device} is not served")
            del self._members[oldest.hello.device]
            self._told.pop(oldest.hello.device, None)
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
        fit = sorted((hello for hello in here if self._is_served(hello)), key=lambda hello: hello.device)
        apart = devices_apart(fit, self._settings.runtime)
        for device, why in apart.items():
            if self._told.get(device) != why:
                self._told[device] = why
                log.warning("%s is not served: %s; have it join directly if that is so", device, why)
        return [hello for hello in fit if hello.device not in apart]

    def _is_served(self, hello: Hello) -> bool:
        profile, least = hello.profile, self._settings.least_budget_bytes
        has_runtime = profile.trainer_idle_bytes.get(self._settings.runtime, 0) > 0
        has_budget = not profile.budget_bytes or profile.budget_bytes >= least
        return has_runtime and has_budget and hello.num_examples > 0 and not hello.data_error


def site_profile(device: str, runtime: str, hellos: Sequence[Hello]) -> DeviceProfile:
    """What every one of the devices can afford: the smallest of each limit, the largest of each need."""
    profiles = [hello.profile for hello in hellos]
    versions = Counter(hello.runtimes.get(runtime, "") for hello in hellos)
    usual = next(h for h in hellos if h.runtimes.get(runtime, "") == versions.most_common(1)[0][0])
    first = usual.profile
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
        runtimes=dict(usual.runtimes),
        probed_at=max(p.probed_at for p in profiles),
    )


def devices_apart(hellos: Sequence[Hello], runtime: str) -> dict[str, str]:
    """Device -> what of its profile is :data:`APART` times worse than its site's median; of two, than the other's."""
    limits: dict[str, Callable[[DeviceProfile], int]] = {
        "budget_bytes": lambda profile: profile.budget_bytes,
        "ram_bytes": lambda profile: profile.ram_bytes,
        "memory_limit_bytes": lambda profile: profile.memory_limit_bytes or 0,
        "storage_free_bytes": lambda profile: profile.storage_free_bytes,
    }
    needs: dict[str, Callable[[DeviceProfile], int]] = {
        "supervisor_idle_bytes": lambda profile: profile.supervisor_idle_bytes,
        "trainer_idle_bytes": lambda profile: profile.trainer_idle_bytes.get(runtime, 0),
    }
    apart: dict[str, str] = {}
    for name, value_of in (*limits.items(), *needs.items()):
        known = {hello.device: value_of(hello.profile) for hello in hellos if value_of(hello.profile)}
        if len(known) < 2:
            continue
        is_limit = name in limits
        usual = (statistics.median_high if is_limit else statistics.median_low)(known.values())
        for device, value in known.items():
            if (value * APART < usual) if is_limit else (value > usual * APART):
                apart.setdefault(device, f"its {name} is {value}, the median of the site {usual}")
    return apart


def largest_weight(examples: Collection[int]) -> int:
    """The most examples that the update of one of the devices stands for, whatever it says."""
    return max(1, int(MOST_OF_MEDIAN * statistics.median(examples))) if examples else 1


def _least(values: Iterable[int]) -> int:
    """The smallest of those that are known; 0 when none is."""
    return min(filter(None, values), default=0)
