"""What ``apportion device`` is told once: the fleet's settings, and what an owner asks of an agent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coordinator.fleet.book import FleetBook, FleetSettings
from edge.contracts.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class AgentConditions:
    """When an agent may train, as its own arguments have it."""

    train_between: str = ""
    max_temperature_c: float | None = None
    min_battery_percent: float | None = None
    only_charging: bool = False
    min_free_mb: float | None = None

    def flags(self) -> tuple[str, ...] | None:
        """Arguments of ``apportion agent``; None when no condition was given.

        Raises:
            ConfigError: a time of day that is none.
        """
        from edge.system.time_window import TimeWindow

        words: list[str] = []
        if self.train_between:
            try:
                words += ["--train-between", str(TimeWindow.parse(self.train_between))]
            except ValueError as error:
                raise ConfigError([f"--train-between: {error}"]) from error
        for flag, value in (
            ("--max-temperature-c", self.max_temperature_c),
            ("--min-battery-percent", self.min_battery_percent),
            ("--min-free-mb", self.min_free_mb),
        ):
            words += [] if value is None else [flag, f"{value:g}"]
        words += ["--only-charging"] if self.only_charging else []
        return tuple(words) or None


def settled(
    fleet: Path,
    *,
    config: Path | None = None,
    federation: str = "",
    broker: str = "",
    identity: str = "",
    broker_folder: str = "",
    broker_pid_file: str = "",
    web_socket: str = "",
    is_whole: bool = True,
    may_be_phones_only: bool = False,
) -> tuple[FleetBook, FleetSettings]:
    """The book in ``fleet`` and its settings with what was given, which is kept from then on.

    Args:
        config: a run file; what is given besides goes before it.
        web_socket: of the broker, for phones.
        is_whole: federation, broker and identity have to be known then.
        may_be_phones_only: no broker is needed where a run serves the page for phones, which tells them.

    Raises:
        ConfigError: they are not, or cannot be used; nothing was kept.
    """
    book = FleetBook(fleet)
    of_run = {} if config is None else _of_run_file(config)
    own = {
        "federation": federation,
        "broker": broker,
        "identity": _absolute(identity),
        "broker_folder": _absolute(broker_folder),
        "broker_pid_file": _absolute(broker_pid_file),
        "web_socket": web_socket,
    }
    given = {**of_run, **{name: value for name, value in own.items() if value}}
    before = book.settings()
    after = {name: given.get(name) or getattr(before, name) for name in ("web", *own)}
    problems = _problems(after, before, may_be_phones_only=may_be_phones_only) if is_whole else []
    if problems:
        raise ConfigError(
            problems, hint="apportion device add TARGET --federation NAME --broker mqtts://HOST:8883 --identity DIR"
        )
    return book, book.settle(**given)


def _problems(settings: dict[str, str], before: FleetSettings, *, may_be_phones_only: bool) -> list[str]:
    from coordinator.config.broker import is_web_socket
    from edge.contracts.errors import MessageRejected
    from edge.contracts.topics import check_name
    from edge.transport.broker_address import parse_broker

    problems = []
    for flag, what in (
        ("federation", "its name"),
        ("broker", "its URL"),
        ("identity", "the folder of apportion ca init"),
    ):
        is_spared = flag == "broker" and may_be_phones_only and settings["web"]
        if not settings[flag] and not is_spared:
            problems.append(f"--{flag}: the fleet book does not have it yet; give {what}, once")
    try:
        if settings["federation"]:
            check_name(settings["federation"], what="--federation:")
        if settings["broker"]:
            parse_broker(settings["broker"])
            if not settings["broker"].startswith("mqtts://"):
                problems.append(
                    f"--broker: {settings['broker']!r} must be mqtts://host[:port]: devices have certificates"
                )
    except MessageRejected as error:
        problems.append(str(error))
    except ConfigError as error:
        problems += error.problems
    if settings["web_socket"] and not is_web_socket(settings["web_socket"]):
        problems.append(f"--web-socket: {settings['web_socket']!r} is not wss://host:port[/path]")
    if before.federation and settings["federation"] != before.federation:
        problems.append(
            f"--federation: this book is of '{before.federation}', not of '{settings['federation']}'; "
            "one book for each: --fleet DIR"
        )
    if settings["identity"] and not (Path(settings["identity"]) / "ca.pem").is_file():
        problems.append(f"--identity: {settings['identity']} holds no identity; apportion ca init makes one")
    return problems


def _of_run_file(path: Path) -> dict[str, str]:
    from coordinator.run_file.loading import load_config

    config = load_config(path)
    broker = config.broker
    if "://" not in broker.url and not broker.web:
        raise ConfigError(
            [f"{path}: [broker] url = '{broker.url}' is a broker for this machine alone; devices cannot reach it"],
            hint="set it to mqtts://HOST:8883, or give --broker; for phones, set web",
        )
    is_started = "://" not in broker.url  # then the run tells it of claims and revocations
    return {
        "federation": config.federation.name,
        "broker": "" if is_started else broker.url,
        "identity": broker.identity,
        "broker_folder": broker.folder,
        "web": broker.web,
        "web_socket": broker.web_socket,
    }


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve()) if path else ""
