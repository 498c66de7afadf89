"""What a file may make a coordinator do for whoever wrote it: run code, and send what the environment holds.

``package.module:function`` is a name for any function that can be imported, ``subprocess:getoutput`` among them, and
``password-env`` for any variable, ``AWS_SECRET_ACCESS_KEY`` among them, whose value goes to a broker that the file
names too. Who begins a run wrote its file, or has read it; an artifact, a run's directory and a ledger on a server may
be somebody else's, and a run that was not begun here (:mod:`coordinator.cli.own_runs`) is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.models.libraries import is_own
from edge.contracts.errors import ConfigError

if TYPE_CHECKING:
    from coordinator.config.run_config import RunConfig

HELP = "run the code of your own that it names (package.module:function)"
FOREIGN_HELP = f"{HELP}; for a run that was not begun here"
KEYS_HELP = "use the identity and keys of yours that it names; for a run that was not begun here"
ENV_HELP = "send the value of this environment variable to the broker, where password-env names it; may be repeated"

PREFIX = "APPORTION_"
NEVER_SENT = frozenset({"APPORTION_ROOT_PASSPHRASE"})
"""Of this project, and meant for no broker."""


def named_by(config: RunConfig) -> list[str]:
    """What a run file names that may be code of its author's: functions, and interpreters of trainers."""
    environments = [f"environment:{path}" for path in config.runtime.environments.values()]
    named = [*model_code(config.model.build), config.method.name, config.task.name, config.data.source]
    return [*named, str(config.method.options.get("proxy", "")), *environments]


def model_code(build: str) -> list[str]:
    """The model's name where it is the author's code; a model of another package by name is not."""
    return [build] if is_own(build) else []


def check_code(names: Iterable[object], where: Path | str, *, is_allowed: bool) -> None:
    """Check that ``where`` names no code, only what comes with this release, or that it may.

    Raises:
        ConfigError: it does; nothing was imported.
    """
    if is_allowed:
        return
    if code := [str(name)[:200] for name in names if ":" in str(name)]:
        raise ConfigError(
            [f"{where} names code to run, {', '.join(code)}; look at it, then give --allow-code if you trust it"]
        )


def is_free_to_send(variable: str) -> bool:
    """Whether a run file may name the variable without being asked: it is none, or one that is for brokers."""
    return not variable or (variable.startswith(PREFIX) and variable not in NEVER_SENT)


def check_variable(config: RunConfig, allowed: Collection[str] = ()) -> None:
    """Check that the variable whose value goes to the broker is one for that, or was named on the command line.

    Raises:
        ConfigError: it is not; nothing was read.
    """
    variable = config.broker.password_env
    if is_free_to_send(variable) or variable in allowed:
        return
    broker = config.broker.url.rpartition("@")[2]
    raise ConfigError(
        [
            f"$.broker.password-env: {variable[:100]} would be sent to the broker at {broker}; if that is meant, give "
            f"--allow-env {variable[:100]}, or use a name that begins with {PREFIX}"
        ]
    )


def keys_of(config: RunConfig) -> list[str]:
    """What of this account's keys a run would use: to sign orders, or to be let in."""
    broker = config.broker
    tls = "" if isinstance(broker.tls, bool) else broker.tls.key
    named = {"broker.identity": broker.identity, "broker.tls.key": tls, "broker.web-key": broker.web_key}
    return [f"{key} = {path}" for key, path in named.items() if path]


def needs_record(config: RunConfig) -> bool:
    """Whether a run of ``config`` names something that a run begun elsewhere may not have without being asked."""
    names_code = any(":" in name for name in named_by(config))
    return names_code or bool(keys_of(config)) or not is_free_to_send(config.broker.password_env)


def check_foreign(
    config: RunConfig, where: Path | str, *, allow_code: bool, allow_keys: bool, allow_env: Collection[str]
) -> None:
    """Check that a run that was not begun here names nothing of this account's, or that it may have it.

    Raises:
        ConfigError: it does; nothing was imported, read or sent.
    """
    check_code(named_by(config), f"{where} was not begun here and", is_allowed=allow_code)
    check_variable(config, allow_env)
    if not allow_keys and (keys := keys_of(config)):
        raise ConfigError(
            [
                f"{where} was not begun here and uses keys, {', '.join(keys)}: orders would be signed with them; look "
                "at it, then give --allow-keys if you trust it"
            ]
        )
