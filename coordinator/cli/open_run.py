"""Puts a federation together from a configuration and a run directory, and takes it apart again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from coordinator.blobs.blob_store import BlobStore
from coordinator.blobs.garbage import collect_at_start
from coordinator.blobs.opening import open_blobs
from coordinator.brokers.opening import open_broker
from coordinator.cli.device_invitation import device_invitation
from coordinator.cli.federation_parts import blob_service, name_cut_off, publisher_to
from coordinator.cli.identity_handler import IdentityHandler
from coordinator.cli.page_serving import PageService, open_page, web_listener
from coordinator.cli.preparation import Prepared
from coordinator.cli.run_directory import ledger_place
from coordinator.cli.taking_turns import held_at
from coordinator.config.run_config import RunConfig
from coordinator.exporting.cut_exporter import CutExporter
from coordinator.ledger.ledger import Ledger
from coordinator.local_devices.ceilings import describe
from coordinator.local_devices.data_folders import local_devices
from coordinator.local_devices.keeper import AgentKeeper
from coordinator.local_devices.processes import LocalDevices, connection_address
from coordinator.messaging.block_lane import BlockLane
from coordinator.messaging.cohort import Cohort
from coordinator.messaging.event_queue import EventQueue
from coordinator.messaging.inbox import Inbox
from coordinator.messaging.message_loop import MessageLoop
from coordinator.methods.method import Method
from coordinator.planning.artifacts import Artifacts
from coordinator.privacy.masking_handler import MaskingHandler
from coordinator.reporting.progress import Progress
from coordinator.rounds.crash_points import known_only
from coordinator.rounds.evaluation import Score
from coordinator.rounds.evaluators import AnyEvaluator
from coordinator.rounds.federation import Federation, RoundStage, Stages
from coordinator.rounds.live_state import written_live
from coordinator.rounds.remote_devices import MqttDevices, RemoteDevices
from coordinator.rounds.round_clock import RoundClock
from coordinator.rounds.stages import stages_of
from coordinator.rounds.status import RoundStatus
from coordinator.shards.leadership import LEADER, Leadership
from coordinator.submodels.values import State
from edge.contracts import topics
from edge.masking.keys import ABILITY
from edge.releases import own_tensors
from edge.serving.budgets import Budgets
from edge.serving.traffic import ByteAccount
from edge.supervisor import control_variates
from edge.transport.base import Transport
from edge.transport.mqtt import MqttTransport

COORDINATOR_INFLIGHT = 200


@dataclass(frozen=True)
class RunOptions:
    """What a command line adds to a configuration.

    Attributes:
        local_devices: agents to start here; None starts those of ``[[cohort.local]]``, 0 none.
        dashboard_port: where the dashboard is served on the loopback, 0 any; None: it is not.
        on_point: see :class:`coordinator.rounds.federation.Federation`.
        watchers: stages that only look; they come after the run's own.
        max_epsilon: in place of ``$.privacy.max-epsilon``, which a resumed run's file cannot change.
    """

    local_devices: int | None = None
    dashboard_port: int | None = None
    max_epsilon: float | None = None
    quiet: bool = False
    on_point: Callable[[str], None] = lambda point: None
    watchers: tuple[RoundStage, ...] = ()


def federation_id(config: RunConfig, run_dir: Path) -> str:
    """Name of the run's topics; its assignment ids derive from it, so equal configurations give equal ids."""
    return topics.check_name(config.federation.name, what="$.federation.name")


@dataclass(frozen=True)
class OpenRun:
    """A run whose devices are answered, the agents that were started here, and what it is doing in a line."""

    federation: Federation
    local: LocalDevices
    status: RoundStatus


@contextlib.contextmanager
def opened_run(
    config: RunConfig,
    run_dir: Path,
    options: RunOptions,
    prepared: Prepared,
    progress: Progress,
    leadership: Leadership | None = None,
    *,
    starts_agents: bool | None = None,
) -> Iterator[OpenRun]:
    """The run in ``run_dir`` with its broker and its local agents, answering devices while the context is open.

    Args:
        starts_agents: start the local agents; None: where the run has not ended.
    """
    ledger = Ledger.open(ledger_place(config, run_dir), federation=federation_id(config, run_dir))
    if leadership is not None:
        ledger.leases.fence(LEADER, leadership.owner, leadership.term)
    name = ledger.federation().id
    if starts_agents is None:
        starts_agents = ledger.federation().state != "finished"
    devices = local_devices(config, prepared.dataset, run_dir, options.local_devices if starts_agents else 0)
    ledger.led_by(leadership.owner if leadership else "")
    with contextlib.ExitStack() as stack:
        stack.callback(ledger.close)
        blobs = open_blobs(config, run_dir, ledger.federation())
        if collected := collect_at_start(ledger, blobs, is_alone=not config.store.ledger):
            progress.say(collected)
        listener = web_listener(config.broker)
        address = stack.enter_context(
            open_broker(config.broker, run_dir / "broker", federation=name, web_socket=listener)
        )
        progress.say(f"federation {name}: {address.kind} broker at {address.url}")
        progress.say(f"run directory {run_dir}")
        if config.cohort.size > len(devices):
            progress.invite(device_invitation(config, name, address, run_dir / "broker"))
        connection = connection_address(address)
        transport = MqttTransport(
            connection,
            client_id=connection.client_id(f"@{name}", f"{name}-coordinator"),
            subscriptions=(topics.coordinator_filter(name),),
            # A thousand orders leave at once: with a device's few in flight an answer would wait for all of them.
            inflight=COORDINATOR_INFLIGHT,
        )
        page = stack.enter_context(open_page(config.broker, name, blobs, address, progress.say))
        if page is not None:
            progress.say(f"page for phones at {page.address}")
            progress.say(f"invite one: apportion device add --qr --device ID --config {run_dir / 'config.toml'}")
        federation = stack.enter_context(
            open_federation(
                config,
                prepared.method,
                ledger,
                blobs,
                prepared.evaluator,
                transport,
                progress,
                options,
                page=page,
                leadership=leadership,
                checkpoints=run_dir / "checkpoints",
            )
        )
        remote = federation.devices
        assert isinstance(remote, RemoteDevices)
        address.watch(partial(name_cut_off, ledger, progress.say))
        local = LocalDevices(devices, address, name)
        keeper = AgentKeeper(local, progress.say, progress.record)
        if devices:
            progress.say(f"starting {len(devices)} agents on this machine")
            stack.enter_context(local)
            stack.enter_context(keeper)
            if limited := describe(list(local.ceilings().values())):
                progress.say(limited)
        status = RoundStatus(
            config,
            ledger,
            remote.cohort,
            remote.clock,
            expected=[device.device for device in devices],
            ended=keeper.stopped,
            say=progress.say,
        )
        stack.enter_context(written_live(run_dir, remote.cohort, remote.clock))
        yield OpenRun(federation, local, status)


@contextlib.contextmanager
def open_federation(
    config: RunConfig,
    method: Method,
    ledger: Ledger,
    blobs: BlobStore,
    evaluator: AnyEvaluator,
    transport: Transport,
    progress: Progress,
    options: RunOptions,
    *,
    page: PageService | None = None,
    leadership: Leadership | None = None,
    checkpoints: Path | None = None,
) -> Iterator[Federation]:
    """The federation of ``ledger``, answering devices over ``transport`` while the context is open.

    Args:
        page: where devices in browsers have blobs from; others have them from ``$.broker.bulk`` or over MQTT.
        leadership: the lease without which no device is answered; None where there is one coordinator.
        checkpoints: folder of the models that the run file asks to keep; None: they are not kept.

    Raises:
        BrokerUnreachable: as :meth:`edge.transport.base.Transport.start`; also AccessDenied.
    """
    name = ledger.federation().id
    budgets = Budgets()
    events = EventQueue(budgets)
    account = ByteAccount() if page is None else page.account
    service = blob_service(config, blobs, account)
    publisher = publisher_to(
        transport, name, config, blobs, page=page, service=service, account=account, budgets=budgets
    )
    is_buffered = config.aggregation.mode == "buffered"
    is_masked = config.privacy.secure_aggregation
    masking = MaskingHandler(name, ledger, publisher, lambda: inbox.notify(), progress.say)
    known = IdentityHandler(config, name, publisher, progress.say, ledger.nonce)
    needs = [ABILITY] if is_masked else []
    needs += [own_tensors.ABILITY] if config.personal.layers else []
    needs += [control_variates.ABILITY] if config.training.scaffold else []
    cohort = Cohort(config.runtime.names, needs=needs, unfit=known.unfit)
    clock = RoundClock(order_s=config.cohort.deadline_s if is_buffered else 0.0)
    on_point = known_only(options.on_point if leadership is None else held_at(leadership, options.on_point))
    lane = BlockLane(publisher.block, transport)
    inbox = Inbox(
        name,
        ledger=ledger,
        blobs=blobs,
        cohort=cohort,
        publisher=publisher,
        remaining_s=clock.for_orders_s,
        say=progress.say,
        on_point=on_point,
        check=known.check,
        uploads_at_once=config.updates.at_once,
        more_handlers={**(masking.handlers if is_masked else {}), **known.handlers},
        give=lane.ask,
    )

    def evaluate(state: State) -> dict[str, Score]:
        return {label: evaluator.score(model) for label, model in method.eval_models(state).items()}

    with contextlib.ExitStack() as stack:
        stack.callback(publisher.close)
        if page is not None:
            page.only(inbox.named, budgets)
        if service is not None:
            service.take_updates(inbox.uploads)
            service.only(inbox.named, budgets)
            stack.enter_context(service)
        stack.enter_context(lane)
        stack.enter_context(known.shutting_out(inbox, service, page))
        stack.enter_context(MessageLoop(inbox, events, may_answer=leadership.is_held if leadership else lambda: True))
        transport.start(events.put)
        stopping = threading.Lock()

        def stop() -> None:
            with stopping:
                transport.stop()

        stack.callback(stop)
        if leadership is not None:
            # Whoever leads now has our name at the broker: two that both come back would cut each other off.
            stack.enter_context(leadership.when_lost(stop))
            stack.enter_context(leadership.when_lost(inbox.notify))
        yield Federation(
            name=name,
            config=config,
            method=method,
            artifacts=Artifacts(CutExporter(config), ledger, blobs, cache=config.planner.export_cache),
            ledger=ledger,
            blobs=blobs,
            devices=MqttDevices(cohort, publisher, inbox, clock),
            progress=progress,
            evaluate=evaluate,
            stages=Stages([*stages_of(config), *options.watchers]),
            on_point=on_point,
            checkpoints=checkpoints,
        )
