"""The blobs of a run, where its configuration says they are."""

from __future__ import annotations

from pathlib import Path

from coordinator.blobs.blob_store import BlobStore
from coordinator.config.run_config import RunConfig
from coordinator.ledger.records import Federation


def open_blobs(config: RunConfig, run_dir: Path, run: Federation | None = None, *, tidy: bool = True) -> BlobStore:
    """The store of ``[store]``: a folder, or an address elsewhere with copies in that folder.

    Args:
        run: whose blobs they are; an address of another run is refused. None for somebody who only looks.
        tidy: see :class:`BlobStore`.

    Raises:
        ConfigError: an address that cannot be used, or of another run; StoreUnreachable.
    """
    folder = Path(config.store.dir) if config.store.dir else run_dir / "blobs"
    quota_bytes = round(config.store.quota_mb * 1e6)
    if config.store.blobs:
        from coordinator.blobs.cached import CachedBlobs
        from coordinator.blobs.remote import RemoteFolder

        remote = RemoteFolder(config.store.blobs)
        blobs: BlobStore = CachedBlobs(folder, remote, quota_bytes=quota_bytes, tidy=tidy)
    else:
        blobs = BlobStore(folder, quota_bytes=quota_bytes, tidy=tidy)
    if run is not None:
        blobs.claim(owner_of(run), is_own=not config.store.dir)
    return blobs


def owner_of(run: Federation) -> str:
    """The name a run's blobs are claimed by: no other run has it, however often its configuration is run."""
    return f"{run.id} of {run.created_at:.6f}"
