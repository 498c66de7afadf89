"""The file in which the owner of a device, or of a relay's site, says what it may be asked.

Every key may be left out; what is left out is allowed. When a device trains (heat, battery, charger) is not said here
but by the agent's conditions.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from edge.contracts.errors import ConfigError
from edge.system.time_window import TimeWindow

MAX_FILE_BYTES = 65_536
MB = 10**6
"""Bytes of the file's ``-mb``, as links are paid for; memory's is 2^20, as everywhere."""


class Names(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which names may be asked for: those of ``allow`` where it is given, and never those of ``deny``."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()

    def forbids(self, name: str) -> str:
        """The key that forbids ``name``, with its value; empty: it is allowed."""
        if name in self.deny:
            return f"deny: {_listed(self.deny)}"
        return "" if self.allow is None or name in self.allow else f"allow: {_listed(self.allow)}"


class Bytes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """Megabytes (10^6 bytes) of artifacts, weights and updates; None: any number."""

    download_per_round_mb: float | None = None
    download_per_day_mb: float | None = None
    upload_per_round_mb: float | None = None
    upload_per_day_mb: float | None = None


class Memory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """What agent and trainer may reach together, in megabytes of 2^20 bytes."""

    max_mb: float | None = None


class Disk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """What the device's disk may hold of its data, in megabytes (10^6 bytes).

    Attributes:
        features_mb: of what frozen blocks make of its examples, kept between steps and rounds; 0: nothing. None: half
            of what the store's quota, or the disk, leaves.
    """

    features_mb: float | None = None

    @property
    def features_bytes(self) -> int | None:
        """:attr:`features_mb` in bytes."""
        return None if self.features_mb is None else int(self.features_mb * MB)


class Rounds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """When, by the device's own clock, and how often it may be asked.

    Attributes:
        cpu_seconds_per_day: processor time of a day's trainings after which no order is taken; the last one goes on.
    """

    hours: tuple[str, ...] = ()
    per_day: int | None = None
    cpu_seconds_per_day: float | None = None

    @property
    def windows(self) -> tuple[TimeWindow, ...]:
        """:attr:`hours`, read.

        Raises:
            ValueError: one is no time of day.
        """
        return tuple(TimeWindow.parse(text) for text in self.hours)


class Orders(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """What an order has to be, and may ask for beside the update.

    Attributes:
        labels: be told which classes the device has examples of.
        scores: be told sums over examples that the device holds out.
        releases: install a model for the device's owner.
    """

    require_signed: bool = False
    labels: bool = True
    scores: bool = True
    releases: bool = True


class PrivacyRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """How an update has to be protected.

    Attributes:
        min_cohort: devices whose masked updates are in a sum, at least.
        require_clipping: the difference is clipped on the device, before masks.
    """

    require_secure_aggregation: bool = False
    min_cohort: int = 0
    require_clipping: bool = False


class SitePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    federations: tuple[str, ...] | None = None
    methods: Names = Names()
    runtimes: Names = Names()
    bytes: Bytes = Bytes()
    memory: Memory = Memory()
    disk: Disk = Disk()
    rounds: Rounds = Rounds()
    orders: Orders = Orders()
    privacy: PrivacyRules = PrivacyRules()


def load_policy(path: Path) -> SitePolicy:
    """The policy in ``path``.

    Raises:
        ConfigError: it cannot be read; everything that is wrong with it, each with its key and value.
    """
    try:
        data = path.read_bytes()
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError([f"--policy: {path} has {len(data)} bytes, at most {MAX_FILE_BYTES} are read"])
        values = tomllib.loads(data.decode())
    except (OSError, ValueError) as error:
        raise ConfigError([f"--policy: {path} cannot be read: {error}"]) from error
    problems = list(_unknown(values, SitePolicy, "$"))
    if not problems:
        try:
            policy = msgspec.convert(values, SitePolicy)
            problems = list(_impossible(policy))
        except msgspec.ValidationError as error:
            problems = [_told(str(error), values)]
    if problems:
        raise ConfigError([f"{path}: {problem}" for problem in problems], hint="docs/site-policy.md lists the keys")
    return policy


def _unknown(values: dict[str, Any], kind: type[msgspec.Struct], where: str) -> Iterator[str]:
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in values.items():
        if key not in fields:
            yield f"{where}.{key} = {value!r}: there is no such rule; known: {', '.join(sorted(fields))}"
        elif isinstance(fields[key], type) and issubclass(fields[key], msgspec.Struct) and isinstance(value, dict):
            yield from _unknown(value, fields[key], f"{where}.{key}")


def _told(error: str, values: dict[str, Any]) -> str:
    """msgspec's words with the value they are about."""
    what, _, where = error.partition(" - at `")
    where = where.removesuffix("`") or "$"
    value: Any = values
    for key in where.removeprefix("$").strip(".").split("."):
        value = value.get(key.partition("[")[0], value) if isinstance(value, dict) else value
    return f"{where} = {value!r}: {what}"


def _impossible(policy: SitePolicy) -> Iterator[str]:
    for table, rules in (("bytes", policy.bytes), ("memory", policy.memory)):
        for field in msgspec.structs.fields(rules):
            value = getattr(rules, field.name)
            if value is not None and not (math.isfinite(value) and value > 0):
                where = f"$.{table}.{field.encode_name}"
                yield f"{where} = {value}: a number of megabytes above 0 is wanted; leave it out for any"
    features = policy.disk.features_mb
    if features is not None and not (math.isfinite(features) and features >= 0):
        yield f"$.disk.features-mb = {features}: a number of megabytes, at least 0, is wanted; leave it out for any"
    for number, text in enumerate(policy.rounds.hours):
        try:
            TimeWindow.parse(text)
        except ValueError as error:
            yield f"$.rounds.hours[{number}]: {error}"
    if policy.rounds.per_day is not None and policy.rounds.per_day < 1:
        yield f"$.rounds.per-day = {policy.rounds.per_day}: at least 1 is wanted; end the agent to be asked nothing"
    seconds = policy.rounds.cpu_seconds_per_day
    if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
        yield f"$.rounds.cpu-seconds-per-day = {seconds}: a number of seconds above 0 is wanted; leave it out for any"
    if policy.privacy.min_cohort < 0 or policy.privacy.min_cohort == 1:
        yield f"$.privacy.min-cohort = {policy.privacy.min_cohort}: 0 (any) or at least 2 is wanted"
    for table, names in (("methods", policy.methods), ("runtimes", policy.runtimes)):
        if names.allow is not None and set(names.allow) <= set(names.deny):
            yield f"$.{table}: everything that allow = {_listed(names.allow)} names is denied; no order would be taken"


def _listed(names: tuple[str, ...]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"
