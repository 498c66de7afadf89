"""What a federation has beside its rounds where its configuration asks for it: signatures, and blobs over HTTPS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from coordinator.blobs.blob_store import BlobStore
from coordinator.config.run_config import RunConfig
from coordinator.ledger.ledger import Ledger
from edge.serving.budgets import Budgets
from edge.serving.publisher import Publisher, Signer
from edge.serving.traffic import ByteAccount
from edge.transport.base import Transport

if TYPE_CHECKING:
    from coordinator.cli.page_serving import PageService
    from coordinator.web.device_services import BlobService


def signer(config: RunConfig) -> Signer | None:
    """What signs orders; None without an identity."""
    if not config.broker.identity:
        return None
    from coordinator.identity.signing import SigningKey

    return SigningKey.load(Path(config.broker.identity))


def blob_service(config: RunConfig, blobs: BlobStore, account: ByteAccount) -> BlobService | None:
    """The service at ``$.broker.bulk``, not started; None without one."""
    if not config.broker.bulk:
        return None
    from coordinator.brokers.broker_files import server_files
    from coordinator.fleet.claim_handler import ClaimHandler
    from coordinator.web.device_services import BlobService

    identity, broker = Path(config.broker.identity), urlsplit(config.broker.url)
    certificate, key = server_files(identity, urlsplit(config.broker.bulk).hostname or "")
    # A broker that the run starts for itself is no address for other machines; a password in it is nobody else's.
    reached_at = f"{broker.scheme}://{broker.netloc.rpartition('@')[2]}" if broker.netloc else ""
    claims = ClaimHandler(identity, federation=config.federation.name, broker=reached_at)
    return BlobService(
        blobs,
        config.broker.bulk,
        certificate,
        key,
        claims=claims,
        account=account,
        connections_of_an_address=config.broker.address_connections,
    )


def name_cut_off(ledger: Ledger, say: Callable[[str], None], device: str, why: str) -> None:
    """Name a device that the run's own broker cuts off, in the audit log and to people."""
    if ledger.audit_log.named(device, "cut-off", why):
        say(f"{device}: {why}")


def bulk(page: PageService | None, service: BlobService | None) -> Callable[[str, float], str] | None:
    """The address that a device may have blobs from, for so many seconds; None: over MQTT only."""
    if page is None:
        return None if service is None else service.url_for

    def url_for(device: str, valid_s: float) -> str:
        return page.url_for(device, valid_s) or ("" if service is None else service.url_for(device, valid_s))

    return url_for


def publisher_to(
    transport: Transport,
    name: str,
    config: RunConfig,
    blobs: BlobStore,
    *,
    page: PageService | None,
    service: BlobService | None,
    account: ByteAccount,
    budgets: Budgets,
) -> Publisher:
    """What sends to the devices of federation ``name``, in its orders where blobs are had and updates put."""
    upload_to = None if service is None else service.upload_to
    addresses = bulk(page, service)
    return Publisher(
        name,
        blobs,
        transport,
        signer=signer(config),
        bulk=addresses,
        upload_to=upload_to,
        account=account,
        budgets=budgets,
    )
