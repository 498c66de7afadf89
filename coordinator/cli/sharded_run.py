"""Runs one coordinator of a federation whose devices are divided among several: its shards, and its turns to lead."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator.blobs.blob_store import BlobStore
from coordinator.blobs.garbage import collect_at_start
from coordinator.blobs.opening import open_blobs
from coordinator.brokers.opening import BrokerAddress as Broker
from coordinator.brokers.opening import open_broker
from coordinator.cli.device_invitation import device_invitation
from coordinator.cli.federation_parts import publisher_to
from coordinator.cli.identity_handler import IdentityHandler
from coordinator.cli.preparation import Prepared, prepare
from coordinator.cli.results import finish_run
from coordinator.cli.run_directory import ledger_place
from coordinator.cli.taking_turns import held_at, owner_name, take_turns
from coordinator.config.run_config import RunConfig
from coordinator.exporting.cut_exporter import CutExporter
from coordinator.identity.names import shard_name
from coordinator.ledger.ledger import Ledger
from coordinator.local_devices.processes import connection_address
from coordinator.planning.artifacts import Artifacts
from coordinator.reporting.progress import Progress
from coordinator.rounds.crash_points import known_only
from coordinator.rounds.evaluation import Score
from coordinator.rounds.federation import Federation, Stages
from coordinator.rounds.global_model import write_atomically
from coordinator.rounds.live_state import written_live
from coordinator.rounds.run import run_rounds
from coordinator.rounds.stages import stages_of
from coordinator.rounds.status import RoundStatus
from coordinator.rounds.tracked_rounds import TrackedRounds
from coordinator.shards.cohort import ReadCohort
from coordinator.shards.devices import ShardedDevices
from coordinator.shards.handler import Served
from coordinator.shards.leadership import LEADER, Leadership
from coordinator.shards.service import ShardService
from coordinator.submodels.values import State
from coordinator.tracking.tracked_run import tracked_run
from edge.contracts.errors import ConfigError
from edge.serving.budgets import Budgets
from edge.serving.traffic import ByteAccount
from edge.transport.broker_address import BrokerAddress
from edge.transport.growing import GrowingTransport

INFLIGHT = 200
_OWNER = "shards"
"""File in the run's directory: under which name its process holds shards."""


def run_shards(
    config: RunConfig,
    run_dir: Path,
    local_devices: int | None,
    on_point: Callable[[str], None],
    progress: Progress,
    *,
    is_joined: bool,
) -> dict[str, Any]:
    """Serve shards, and lead in turn, until the run ends; gives what :func:`take_turns` does.

    The caller holds the run's directory.

    Raises:
        ConfigError: ``local_devices`` are to be started, which would end with this process; also IdentityRefused.
    """
    if local_devices:
        raise ConfigError(
            [f"--local-devices {local_devices}: agents that this process starts end with it, and others serve them"],
            hint="start them by themselves: apportion agent",
        )
    name = config.federation.name

    def open_ledger() -> Ledger:
        return Ledger.open(ledger_place(config, run_dir), federation=name)

    with contextlib.ExitStack() as stack:
        ledger, leases_ledger = stack.enter_context(open_ledger()), stack.enter_context(open_ledger())
        blobs = open_blobs(config, run_dir, ledger.federation())
        address = stack.enter_context(open_broker(config.broker, run_dir / "broker", federation=name))
        progress.say(f"federation {name}: {config.store.shards} shards, {address.kind} broker at {address.url}")
        progress.say(f"run directory {run_dir}")
        progress.invite(device_invitation(config, name, address, run_dir / "broker"))
        addresses = [_address_of(address, name, number) for number in range(config.store.shards)]
        served = Served(
            federation=name,
            shards=config.store.shards,
            runtimes=config.runtime.names,
            open_ledger=open_ledger,
            blobs=blobs,
            connect=lambda number, fixed, further: _connection(addresses[number], name, number, fixed, further),
            publisher=lambda transport: publisher_to(
                transport,
                name,
                config,
                blobs,
                page=None,
                service=None,
                account=ByteAccount(),
                budgets=Budgets(),
            ),
            identity=lambda publisher: IdentityHandler(config, name, publisher, progress.say),
            uploads_at_once=config.updates.at_once,
            on_point=on_point,
            say=progress.say,
            record=progress.record,
        )
        owner = _new_owner(leases_ledger, run_dir)
        service = stack.enter_context(
            ShardService(served, leases_ledger, ledger, owner=owner, lease_s=config.store.lease_s)
        )
        return take_turns(
            config,
            run_dir,
            prepare=lambda: prepare(config),
            lead=lambda prepared, leadership: _lead(
                config, run_dir, on_point, prepared, progress, leadership, open_ledger(), blobs, service
            ),
            say=progress.say,
            until_finished=is_joined,
        )


def _address_of(broker: Broker, federation: str, number: int) -> BrokerAddress:
    """Where the connection of a shard goes, with the shard's own certificate where there is an identity.

    Raises:
        IdentityRefused: it has none.
    """
    if broker.identity is not None:
        from coordinator.brokers.broker_files import coordinator_files

        own = coordinator_files(broker.identity, federation, issue=False, shard=number)
        broker = replace(broker, certificate_file=own.certificate, key_file=own.key)
    return connection_address(broker)


def _connection(
    address: BrokerAddress, federation: str, number: int, fixed: str, further: Sequence[str]
) -> GrowingTransport:
    # A shard's name, not a process's: the broker ends the connection of who held the shard before.
    own = address.client_id(shard_name(federation, number), f"{federation}-coordinator-shard-{number}")
    return GrowingTransport(address, client_id=own, subscriptions=[fixed], further=further, inflight=INFLIGHT)


def _new_owner(ledger: Ledger, run_dir: Path) -> str:
    """The name of this process; frees what an earlier one of this directory held, which is dead: nobody else has it."""
    before = run_dir / _OWNER
    if before.is_file():
        ledger.leases.release_all(before.read_text(encoding="utf-8").strip())
    owner = owner_name()
    write_atomically(before, f"{owner}\n".encode())
    return owner


def _lead(
    config: RunConfig,
    run_dir: Path,
    on_point: Callable[[str], None],
    prepared: Prepared,
    progress: Progress,
    leadership: Leadership,
    ledger: Ledger,
    blobs: BlobStore,
    service: ShardService,
) -> dict[str, Any]:
    """Run every round that is left, with what the holders of shards write of the devices."""

    def evaluate(state: State) -> dict[str, Score]:
        return {label: prepared.evaluator.score(model) for label, model in prepared.method.eval_models(state).items()}

    with contextlib.ExitStack() as stack:
        tracked = stack.enter_context(tracked_run(config, run_dir, progress.say))
        stack.enter_context(ledger)
        ledger.leases.fence(LEADER, leadership.owner, leadership.term)
        ledger.led_by(leadership.owner)
        if collected := collect_at_start(ledger, blobs, is_alone=False):
            progress.say(collected)
        cohort = stack.enter_context(ReadCohort(ledger, config.runtime.names))
        devices = ShardedDevices(cohort, service, config.store.shards)
        stack.enter_context(leadership.when_lost(devices.notify))
        federation = Federation(
            name=config.federation.name,
            config=config,
            method=prepared.method,
            artifacts=Artifacts(CutExporter(config), ledger, blobs, cache=config.planner.export_cache),
            ledger=ledger,
            blobs=blobs,
            devices=devices,
            progress=progress,
            evaluate=evaluate,
            stages=Stages([*stages_of(config), *([TrackedRounds(tracked)] if tracked.is_listening else [])]),
            on_point=known_only(held_at(leadership, on_point)),
            checkpoints=run_dir / "checkpoints",
        )
        status = RoundStatus(config, ledger, cohort, devices.clock, say=progress.say)
        with progress.watching(status.line), written_live(run_dir, cohort, devices.clock):
            state = run_rounds(federation)
        wall_s = time.monotonic() - prepared.started
        tracked.summary = finish_run(federation, prepared.evaluator, state, run_dir, wall_s=wall_s)
        return dict(tracked.summary)
