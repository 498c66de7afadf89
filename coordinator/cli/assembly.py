"""Puts a federation together from a configuration and a run directory, runs it, and writes what it leaves.

Used by ``run``, ``resume`` and ``demo``. Nothing here decides anything about rounds, devices or messages.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from coordinator.artifacts import Artifacts
from coordinator.blob_store import BlobStore
from coordinator.broker import open_broker
from coordinator.ceilings import describe
from coordinator.cli.exporting import dense_module, run_exporter, run_input_spec
from coordinator.cli.local_data_folders import local_devices
from coordinator.cli.page_serving import PageService, open_page, web_listener
from coordinator.cli.results import finish_run, finished_summary
from coordinator.cohort import Cohort
from coordinator.configuration import RunConfig, canonical_toml
from coordinator.configuration_file import load_config_text
from coordinator.datasets import load_dataset
from coordinator.distillation.proxy import open_proxy
from coordinator.evaluation import Evaluator, Score
from coordinator.federation import Desk, Federation, RoundClock
from coordinator.global_model import write_atomically
from coordinator.inbox import Inbox
from coordinator.ledger import Ledger
from coordinator.local_devices import LocalDevices, connection_address
from coordinator.methods import build_method
from coordinator.methods.method import Method, State
from coordinator.progress import Progress
from coordinator.publisher import Publisher, Signer
from coordinator.round import run_rounds
from coordinator.round_status import RoundStatus
from edge.contracts import topics
from edge.contracts.errors import LedgerError
from edge.transport.base import Event, Transport
from edge.transport.mqtt import MqttTransport

if TYPE_CHECKING:
    from coordinator.blob_service import BlobService
    from coordinator.identity.message_check import MessageCheck


@dataclass(frozen=True)
class RunOptions:
    """What a command line adds to a configuration.

    Attributes:
        local_devices: agents to start here; None starts those of ``[[cohort.local]]``, 0 none.
        on_point: see :class:`coordinator.federation.Federation`.
    """

    local_devices: int | None = None
    quiet: bool = False
    on_point: Callable[[str], None] = lambda point: None


def start_run(config: RunConfig, run_dir: Path, options: RunOptions) -> dict[str, Any]:
    """A new run in ``run_dir``; the values of its ``summary.json``.

    Raises:
        LedgerError: there is a run in that directory already.
    """
    if (run_dir / "ledger.sqlite").exists():
        raise LedgerError(
            f"{run_dir} holds a run already; resume it with `apportion resume {run_dir}` or choose another"
        )
    run_dir.mkdir(parents=True, exist_ok=True)
    text = canonical_toml(config)
    write_atomically(run_dir / "config.toml", text.encode())
    with lock_run(run_dir):
        Ledger.create(
            run_dir / "ledger.sqlite",
            federation=federation_id(config, run_dir),
            config=text,
            seed=config.federation.seed,
        ).close()
        return _run(config, run_dir, options)


def resume_run(run_dir: Path, options: RunOptions) -> dict[str, Any]:
    """Go on with the run in ``run_dir`` from the last thing on disk; a finished run gives its summary again."""
    with lock_run(run_dir), Ledger.open(run_dir / "ledger.sqlite") as ledger:
        text, state = ledger.federation().config, ledger.federation().state
    if state == "finished" and (summary := finished_summary(run_dir)) is not None:
        return summary
    config = load_config_text(text, folder=run_dir)
    with lock_run(run_dir):
        return _run(config, run_dir, options)


def federation_id(config: RunConfig, run_dir: Path) -> str:
    """Name of the run's topics; its assignment ids derive from it, so equal configurations give equal ids."""
    return topics.check_name(config.federation.name, what="$.federation.name")


@contextlib.contextmanager
def lock_run(run_dir: Path) -> Iterator[None]:
    """Holds the run directory for this process.

    Raises:
        LedgerError: another process holds it, or there is no such directory.
    """
    try:
        descriptor = os.open(run_dir / "lock", os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise LedgerError(f"{run_dir}: cannot be opened ({error.strerror}); give the directory of a run") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LedgerError(f"{run_dir}: another coordinator runs here; wait for it or stop it") from error
        yield
    finally:
        os.close(descriptor)


def _run(config: RunConfig, run_dir: Path, options: RunOptions) -> dict[str, Any]:
    started = time.monotonic()
    progress = Progress(stream=None if options.quiet else sys.stderr, metrics=run_dir / "metrics.jsonl")
    dense = dense_module(config)
    method = build_method(config.method.name, dense, config.method.options)
    dataset = load_dataset(
        config.data.source,
        Path(config.data.path) if config.data.path else None,
        config.federation.seed,
        config.evaluation.holdout,
    )
    dataset = open_proxy(method, config, dataset, run_input_spec(config))
    evaluator = Evaluator(
        lambda: dense_module(config),
        dataset.x_test,
        dataset.y_test,
        run_input_spec(config),
        batch=config.evaluation.batch,
        norm=config.evaluation.norm,
    )
    devices = local_devices(config, dataset, run_dir, options.local_devices)
    ledger = Ledger.open(run_dir / "ledger.sqlite")
    name = ledger.federation().id
    if ledger.federation().state == "new":
        ledger.move_federation("running")
    with contextlib.ExitStack() as stack:
        stack.callback(ledger.close)
        blobs = BlobStore(
            Path(config.store.dir) if config.store.dir else run_dir / "blobs",
            quota_bytes=round(config.store.quota_mb * 1e6),
        )
        listener = web_listener(config.broker)
        address = stack.enter_context(
            open_broker(config.broker, run_dir / "broker", federation=name, web_socket=listener)
        )
        progress.say(f"federation {name}: {address.kind} broker at {address.url}")
        progress.say(f"run directory {run_dir}")
        transport = MqttTransport(
            connection_address(address),
            client_id=f"{name}-coordinator",
            subscriptions=(topics.coordinator_filter(name),),
        )
        page = stack.enter_context(open_page(config.broker, name, blobs, address, progress.say))
        if page is not None:
            progress.say(f"page for phones at {page.address}")
            progress.say(f"invite one: apportion device add --qr --device ID --config {run_dir / 'config.toml'}")
        federation = stack.enter_context(
            open_federation(config, method, ledger, blobs, evaluator, transport, progress, options, page=page)
        )
        local = LocalDevices(devices, address, name)
        if devices:
            progress.say(f"starting {len(devices)} agents on this machine")
            stack.enter_context(local)
            if limited := describe(list(local.ceilings().values())):
                progress.say(limited)
        status = RoundStatus(
            config,
            ledger,
            federation.cohort,
            federation.clock,
            expected=[device.device for device in devices],
            ended=local.exited,
            say=progress.say,
        )
        with progress.watching(status.line):
            state = run_rounds(federation)
        wall_s = time.monotonic() - started
        return finish_run(federation, evaluator, state, run_dir, wall_s=wall_s, ceilings=local.ceilings())


def _signer(config: RunConfig) -> Signer | None:
    if not config.broker.identity:
        return None
    from coordinator.identity.signing import SigningKey

    return SigningKey.load(Path(config.broker.identity))


def _blob_service(config: RunConfig, blobs: BlobStore) -> BlobService | None:
    if not config.broker.bulk:
        return None
    from coordinator.blob_service import BlobService
    from coordinator.fleet.claim_service import ClaimService
    from coordinator.identity.broker_files import server_files

    identity, broker = Path(config.broker.identity), urlsplit(config.broker.url)
    certificate, key = server_files(identity, urlsplit(config.broker.bulk).hostname or "")
    # A broker that the run starts for itself is no address for other machines; a password in it is nobody else's.
    reached_at = f"{broker.scheme}://{broker.netloc.rpartition('@')[2]}" if broker.netloc else ""
    claims = ClaimService(identity, federation=config.federation.name, broker=reached_at)
    return BlobService(blobs, config.broker.bulk, certificate, key, beside=[claims.answer])


def _bulk(page: PageService | None, service: BlobService | None) -> Callable[[str, float], str] | None:
    if page is None:
        return None if service is None else service.url_for

    def url_for(device: str, valid_s: float) -> str:
        return page.url_for(device, valid_s) or ("" if service is None else service.url_for(device, valid_s))

    return url_for


def _message_check(config: RunConfig, federation: str) -> MessageCheck | None:
    if not config.broker.identity:
        return None
    from coordinator.identity.message_check import BrowserSignatures

    return BrowserSignatures(Path(config.broker.identity), federation)


@contextlib.contextmanager
def open_federation(
    config: RunConfig,
    method: Method,
    ledger: Ledger,
    blobs: BlobStore,
    evaluator: Evaluator,
    transport: Transport,
    progress: Progress,
    options: RunOptions,
    *,
    page: PageService | None = None,
) -> Iterator[Federation]:
    """The federation of ``ledger``, answering devices over ``transport`` while the context is open.

    Args:
        page: where devices in browsers have blobs from; others have them from ``$.broker.bulk`` or over MQTT.

    Raises:
        BrokerUnreachable: as :meth:`edge.transport.base.Transport.start`; also AccessDenied.
    """
    name = ledger.federation().id
    events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
    service = _blob_service(config, blobs)
    publisher = Publisher(name, blobs, transport, signer=_signer(config), bulk=_bulk(page, service))
    cohort, clock = Cohort(config.runtime.names), RoundClock()
    inbox = Inbox(
        name,
        ledger=ledger,
        blobs=blobs,
        cohort=cohort,
        publisher=publisher,
        remaining_s=clock.remaining_s,
        say=progress.say,
        on_point=options.on_point,
        check=_message_check(config, name),
    )

    def evaluate(state: State) -> dict[str, Score]:
        return {label: evaluator.score(model) for label, model in method.eval_models(state).items()}

    with contextlib.ExitStack() as stack:
        stack.callback(publisher.close)
        if service is not None:
            stack.enter_context(service)
        stack.enter_context(Desk(inbox, events))
        transport.start(events.put)
        stack.callback(transport.stop)
        yield Federation(
            name=name,
            config=config,
            method=method,
            artifacts=Artifacts(run_exporter(config), ledger, blobs),
            ledger=ledger,
            blobs=blobs,
            cohort=cohort,
            publisher=publisher,
            inbox=inbox,
            clock=clock,
            progress=progress,
            evaluate=evaluate,
            on_point=options.on_point,
        )
