"""Coordinators of one federation in turn: each waits for the lease, leads while it has it, and waits again."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from coordinator.cli.run_directory import ledger_place
from coordinator.config.run_config import RunConfig
from coordinator.ledger.connections import LedgerAway
from coordinator.ledger.ledger import Ledger
from coordinator.rounds.global_model import write_atomically
from coordinator.shards.leadership import LEADER, Leadership, wait_for_lead
from edge.contracts.errors import ApportionError, ConfigError, LeaseLost

Prepared = TypeVar("Prepared")
_OWNER = "lease"
"""File in the run's directory: under which name and term its process leads."""


def take_turns(
    config: RunConfig,
    run_dir: Path,
    *,
    prepare: Callable[[], Prepared],
    lead: Callable[[Prepared, Leadership], dict[str, Any]],
    say: Callable[[str], None],
    until_finished: bool,
) -> dict[str, Any]:
    """What ``lead`` gives once it ends the run; nothing when another process has ended it, with ``until_finished``.

    The caller holds the run's directory.

    Args:
        prepare: work that is done before the lease is there, so that whoever waits can begin at once.
        lead: runs the rounds; called again after the lease was lost and regained.
    """
    with Ledger.open(ledger_place(config, run_dir), federation=config.federation.name) as ledger:
        _release_earlier(ledger, run_dir)
        while True:
            prepared = prepare()
            leadership = Leadership(ledger, owner_name(), config.store.lease_s)
            if not wait_for_lead(leadership, ledger, say=say, until_finished=until_finished):
                return {}
            write_atomically(run_dir / _OWNER, f"{leadership.owner} {leadership.term}\n".encode())
            say(f"this process leads, as {leadership.owner}, term {leadership.term}")
            try:
                with leadership:
                    return lead(prepared, leadership)
            except ApportionError as error:
                if leadership.is_held() and not isinstance(error, LeaseLost | LedgerAway):
                    raise
                say(f"{error}; this process waits for its next turn")


def check_shareable(config: RunConfig) -> None:
    """Check that coordinators elsewhere find all that they need of a run.

    Raises:
        ConfigError: every place that is one process's own.
    """
    problems = []
    if config.broker.url in ("embedded", "mosquitto"):
        problems.append(
            f"$.broker.url: '{config.broker.url}' is a broker that ends with the process that began the run; "
            "several coordinators need one that runs by itself, mqtt[s]://host"
        )
    if not (config.store.dir or config.store.blobs):
        problems.append(
            "$.store: the blobs are in the directory of the process that began the run; "
            "several coordinators need store.dir, a folder that all of them reach, or store.blobs"
        )
    if problems:
        raise ConfigError(problems, hint="change the run file and begin a new run with it")


def held_at(leadership: Leadership, on_point: Callable[[str], None]) -> Callable[[str], None]:
    """``on_point``, raising LeaseLost at every point once the lease is not held any more."""

    def passed(point: str) -> None:
        leadership.check()
        on_point(point)

    return passed


def owner_name() -> str:
    """A name that no other process has or had."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


def _release_earlier(ledger: Ledger, run_dir: Path) -> None:
    """Let go of what an earlier process of this directory led: it is dead, nobody else can hold the directory."""
    if not (run_dir / _OWNER).is_file():
        return
    owner, _, term = (run_dir / _OWNER).read_text(encoding="utf-8").strip().rpartition(" ")
    if term.isdigit():
        ledger.leases.release(LEADER, owner, int(term))
