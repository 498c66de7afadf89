"""The file that ``apportion forecast`` reads: a fleet in groups, what a round asks, and what a provider charges."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from coordinator.config.table_reader import TableReader, absolute
from edge.contracts.errors import ConfigError

HOURS = 24


class DeviceGroup(msgspec.Struct, frozen=True, kw_only=True):
    """``[[group]]``: devices alike.

    Attributes:
        name: for the tables. Example: ``"pi-4 at home"``.
        share: of the fleet; the shares of all groups add up to 1. Example: ``0.6``.
        step_ms: median training step, as ``apportion profile`` or a run's report has it. Example: ``120.0``.
        step_ms_p95: that one of twenty devices exceeds; devices differ by a log-normal factor; not given, 0: all are
            alike. Example: ``200.0``.
        download_mb_s, upload_mb_s: link, MB of 10^6 bytes a second. Example: ``1.5``.
        online: share of the group that is there, for each hour of the day on its own clock; one value: at all hours.
            Example: ``[0.9]``.
        session_minutes: mean time for which a device stays, drawn from an exponential. Example: ``240.0``.
        utc_offset: hours by which its clock is ahead. Example: ``1``.
        trace: CSV of measured sessions (``device,begin_s,end_s``, from the day's start) in place of ``online`` and
            ``session-minutes``; repeated when it ends. Example: ``"sessions.csv"``.
    """

    name: str
    share: float
    step_ms: float
    step_ms_p95: float = 0.0
    download_mb_s: float
    upload_mb_s: float
    online: tuple[float, ...] = (1.0,)
    session_minutes: float = 1440.0
    utc_offset: int = 0
    trace: str = ""


class RoundShape(msgspec.Struct, frozen=True, kw_only=True):
    """``[rounds]``.

    Attributes:
        count: rounds of the run. Example: ``200``.
        participants: devices asked in a round. Example: ``1000``.
        steps: training steps of a device. Example: ``50``.
        down_mb, up_mb: weights and update, MB of 10^6 bytes. Example: ``1.8``.
        artifact_mb: what a device gets once, artifact and constants. Example: ``2.0``.
        quorum: share of the participants whose reports end a round. Example: ``0.8``.
        deadline_s: at which a round ends with what has come. Example: ``600.0``.
        rest_s: between two rounds: aggregation, evaluation, planning. Example: ``5.0``.
    """

    count: int
    participants: int
    steps: int
    down_mb: float
    up_mb: float
    artifact_mb: float = 0.0
    quorum: float = 1.0
    deadline_s: float = 600.0
    rest_s: float = 0.0


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """``[prices]``, in one currency; 0: it costs nothing.

    Attributes:
        egress_gb: of 10^9 bytes that leave the coordinator's site. Example: ``0.09``.
        core_hour: of one core for an hour. Example: ``0.04``.
        memory_gb_hour: of 2^30 bytes for an hour. Example: ``0.005``.
    """

    egress_gb: float = 0.0
    core_hour: float = 0.0
    memory_gb_hour: float = 0.0


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file.

    Attributes:
        devices: in the fleet. Example: ``1000000``.
        seed: of what is drawn. Example: ``1``.
        heartbeat_s: between two heartbeats of an agent. Example: ``5.0``.
        tls: whether devices connect with TLS. Example: ``true``.
    """

    devices: int
    groups: tuple[DeviceGroup, ...]
    rounds: RoundShape
    prices: Prices = Prices()
    seed: int = 0
    heartbeat_s: float = 5.0
    tls: bool = True


def read_fleet(path: Path) -> Fleet:
    """The fleet in ``path``.

    Raises:
        ConfigError: it cannot be read, or everything that is wrong in it.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError([f"{path}: cannot be read ({error})"]) from error
    problems: list[str] = []
    root = TableReader(values, "$", problems)
    groups = tuple(_group(table, path.parent) for table in root.tables("group"))
    fleet = Fleet(
        devices=root.integer("devices", low=1, high=10**9),
        seed=root.integer("seed", 0, low=0),
        heartbeat_s=root.number("heartbeat-s", 5.0, low=0.1),
        tls=root.flag("tls", True),
        groups=groups,
        rounds=_rounds(root.table("rounds")),
        prices=_prices(root.table("prices")),
    )
    root.finish()
    total = sum(group.share for group in groups)
    if not problems and abs(total - 1.0) > 1e-6:
        problems.append(f"$.group: shares add up to {total:g}, 1 expected")
    if not problems and fleet.rounds.participants > fleet.devices:
        problems.append(f"$.rounds.participants: {fleet.rounds.participants} of {fleet.devices} devices; ask for fewer")
    if problems:
        raise ConfigError(problems, hint="docs/forecast.md lists the keys")
    return fleet


def _group(table: TableReader, folder: Path) -> DeviceGroup:
    online = table.list_of("online", float, "shares", (1.0,))
    if len(online) not in (1, HOURS) or not all(0 <= share <= 1 for share in online):
        table.problem("online", f"one share in [0, 1], or one for each of {HOURS} hours, expected; got {len(online)}")
        online = (1.0,)
    group = DeviceGroup(
        name=table.text("name"),
        share=table.number("share", low=0, high=1, above_low=True),
        step_ms=table.number("step-ms", low=0, above_low=True),
        step_ms_p95=table.number("step-ms-p95", 0.0, low=0),
        download_mb_s=table.number("download-mb-s", low=0, above_low=True),
        upload_mb_s=table.number("upload-mb-s", low=0, above_low=True),
        online=online,
        session_minutes=table.number("session-minutes", 1440.0, low=0, above_low=True),
        utc_offset=table.integer("utc-offset", 0, low=-12, high=14),
        trace=absolute(table.text("trace", ""), folder),
    )
    if group.step_ms_p95 and group.step_ms_p95 < group.step_ms:
        table.problem("step-ms-p95", f"{group.step_ms_p95:g} is below the median, {group.step_ms:g}")
    table.finish()
    return group


def _rounds(table: TableReader) -> RoundShape:
    shape = RoundShape(
        count=table.integer("count", low=1, high=10**6),
        participants=table.integer("participants", low=1),
        steps=table.integer("steps", low=0),
        down_mb=table.number("down-mb", low=0),
        up_mb=table.number("up-mb", low=0),
        artifact_mb=table.number("artifact-mb", 0.0, low=0),
        quorum=table.number("quorum", 1.0, low=0, high=1, above_low=True),
        deadline_s=table.number("deadline-s", 600.0, low=0, above_low=True),
        rest_s=table.number("rest-s", 0.0, low=0),
    )
    table.finish()
    return shape


def _prices(table: TableReader) -> Prices:
    prices = Prices(
        egress_gb=table.number("egress-gb", 0.0, low=0),
        core_hour=table.number("core-hour", 0.0, low=0),
        memory_gb_hour=table.number("memory-gb-hour", 0.0, low=0),
    )
    table.finish()
    return prices
