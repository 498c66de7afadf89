"""Artifacts kept across runs: a folder of folders, named by export key, each with a manifest and its files.

A folder appears by one rename: a reader sees all of an artifact or nothing, and of two writers one wins with the
same bytes. Every digest is checked when an artifact is taken out; a damaged one is removed and exported anew.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from edge.contracts.errors import ArtifactCorrupt, ConfigError, MessageRejected
from edge.contracts.manifest import ArtifactManifest

log = logging.getLogger("apportion.coordinator")

MANIFEST = "manifest.json"


class ExportCache:
    """The artifacts in ``folder``.

    Raises:
        ConfigError: the folder cannot be made or written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise ConfigError(
                [f"$.planner.export-cache: {folder} cannot be written ({error.strerror}); name another folder"]
            ) from error
        self.taken = 0
        """Artifacts that were found in the folder."""

    def get(self, key: str, out_dir: Path, export: Callable[[], ArtifactManifest]) -> ArtifactManifest:
        """The artifact of ``key``, now in ``out_dir``: copied, or made there by ``export`` and kept."""
        kept = self._folder / key[:2] / key
        found = self._taken(kept, key, out_dir)
        if found is not None:
            self.taken += 1
            return found
        manifest = export()
        try:
            self._keep(out_dir, manifest, kept)
        except OSError as error:  # a full disk must not end a run that has its artifact
            log.warning("artifact %s was not kept in %s: %s", key[:12], self._folder, error)
        return manifest

    def _taken(self, kept: Path, key: str, out_dir: Path) -> ArtifactManifest | None:
        """The artifact in ``kept``, copied whole to ``out_dir``; None when there is none that is sound."""
        try:
            data = (kept / MANIFEST).read_bytes()
        except OSError:
            return None
        try:
            manifest = ArtifactManifest.from_bytes(data)
            if manifest.export_key != key:
                raise ArtifactCorrupt(f"it is of export {manifest.export_key[:12]}")
            out_dir.mkdir(parents=True)
            for file in manifest.files:
                content = (kept / file.name).read_bytes()
                if hashlib.sha256(content).hexdigest() != file.sha256:
                    raise ArtifactCorrupt(f"{file.name} is not what its digest says")
                (out_dir / file.name).write_bytes(content)
            (out_dir / MANIFEST).write_bytes(data)
            return manifest
        except (ArtifactCorrupt, MessageRejected, OSError) as error:
            log.warning("artifact %s in %s is damaged (%s); it is exported anew", key[:12], self._folder, error)
            shutil.rmtree(out_dir, ignore_errors=True)
            shutil.rmtree(kept, ignore_errors=True)
            return None

    def _keep(self, made: Path, manifest: ArtifactManifest, kept: Path) -> None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".new-", dir=kept.parent))
        try:
            for name in (*(file.name for file in manifest.files), MANIFEST):
                with (staging / name).open("wb") as file, (made / name).open("rb") as source:
                    shutil.copyfileobj(source, file)
                    file.flush()
                    os.fsync(file.fileno())
            staging.chmod(0o755)
            try:
                os.rename(staging, kept)
            except OSError:
                if not (kept / MANIFEST).exists():  # else another writer was first
                    raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)
