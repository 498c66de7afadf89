"""Deployed models that were sent to this device: the one in use and the one before, and how to go back to that.

::

    <store>/releases/releases.json     which is in use and which was before
    <store>/releases/<digest>/         inference.json and the model's file, as apportion deploy writes a folder

A release is there whole or not at all, and is in use once ``releases.json`` says so.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from edge.contracts.codec import decode_json, encode_json
from edge.contracts.errors import ArtifactCorrupt, ConfigError, MessageRejected, StoreFull
from edge.contracts.inference import MANIFEST_NAME, InferenceManifest
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.plan import WorkOrder
from edge.system.atomic_files import sync_folder, write_whole

SCHEMA = "apportion.releases/1"
FOLDER, FILE = "releases", "releases.json"
_MAX_BYTES = 65_536


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """One model on this device.

    Attributes:
        digest: of the manifest that described it to the device; its folder's name.
        name: for people.
        federation, run: whose it is.
        uses_own: what the device trained for itself in that run takes the place of the model's tensors.
    """

    digest: str
    name: str
    federation: str
    run: str = ""
    uses_own: bool = False


class ReleasesFile(msgspec.Struct, frozen=True, kw_only=True):
    """``releases.json``."""

    current: Release
    previous: Release | None = None
    schema: str = SCHEMA


class Releases:
    """The releases of the device whose store is at ``store``."""

    def __init__(self, store: Path) -> None:
        self._folder = store / FOLDER

    def read(self) -> ReleasesFile:
        """Which there are.

        Raises:
            ConfigError: none was installed; ArtifactCorrupt: the file cannot be read.
        """
        path = self._folder / FILE
        try:
            return decode_json(path.read_bytes(), ReleasesFile, schema=SCHEMA, limit=_MAX_BYTES)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ConfigError(
                [f"--store: no model was sent to {self._folder.parent} yet"],
                hint="its coordinator sends one with: apportion deploy RUN_DIR --fleet",
            ) from error
        except (OSError, MessageRejected) as error:
            raise ArtifactCorrupt(f"{path}: cannot be read ({error}); have the model sent again") from error

    def folder_of(self, release: Release) -> Path:
        """Where its files lie."""
        return self._folder / release.digest

    def install(self, order: WorkOrder, manifest: ArtifactManifest, path_of: Callable[[str], Path]) -> Release:
        """Put what ``order`` brought in use. The one before it stays, older ones go; the same again changes nothing.

        Args:
            path_of: where the verified blob of a digest is.

        Raises:
            MessageRejected: its parts do not belong together; StoreFull: the disk has no room.
        """
        what = order.installation
        assert what is not None
        release = Release(
            digest=order.artifact.digest,
            name=what.name,
            federation=order.federation,
            run=order.run,
            uses_own=what.uses_own,
        )
        try:
            self._write_files(release, order, manifest, path_of)
            self._use(release)
        except OSError as error:
            raise StoreFull(f"{self._folder}: {error}; free disk space") from error
        return release

    def roll_back(self) -> Release:
        """Put the release before the present one in use, and that one in its place.

        Raises:
            ConfigError: there is none.
        """
        found = self.read()
        if found.previous is None:
            raise ConfigError([f"--rollback: '{found.current.name}' is the only model that was sent to this device"])
        self._write(ReleasesFile(current=found.previous, previous=found.current))
        return found.previous

    def _write_files(
        self, release: Release, order: WorkOrder, manifest: ArtifactManifest, path_of: Callable[[str], Path]
    ) -> None:
        folder = self.folder_of(release)
        if folder.is_dir():
            return
        described = next((file for file in manifest.files if file.name == MANIFEST_NAME), None)
        if described is None:
            raise MessageRejected(f"release '{release.name}' has no {MANIFEST_NAME}; deploy it again")
        model = InferenceManifest.from_bytes(path_of(described.sha256).read_bytes())
        if model.file.sha256 != order.weights.digest:
            raise MessageRejected(
                f"release '{release.name}' brings model {order.weights.digest[:12]}, its {MANIFEST_NAME} says "
                f"{model.file.sha256[:12]}; deploy it again"
            )
        staging = self._folder / f"{release.digest}.tmp"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        for digest, name in ((described.sha256, MANIFEST_NAME), (model.file.sha256, model.file.name)):
            _place(path_of(digest), staging / name)
        sync_folder(staging)
        os.replace(staging, folder)
        sync_folder(self._folder)

    def _use(self, release: Release) -> None:
        try:
            found = self.read()
        except (ConfigError, ArtifactCorrupt):  # the first one, or what was there is lost
            before = None
        else:
            before = found.previous if found.current.digest == release.digest else found.current
        self._write(ReleasesFile(current=release, previous=before))
        kept = {release.digest, before.digest if before else release.digest}
        for folder in self._folder.iterdir():
            if folder.is_dir() and folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _write(self, values: ReleasesFile) -> None:
        write_whole(self._folder / FILE, encode_json(values))


def _place(source: Path, target: Path) -> None:
    """``source`` under another name: the same bytes on the disk where it can, for the store may let its own name go."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        with target.open("rb+") as file:
            os.fsync(file.fileno())


EMPTY_UPDATE = (8).to_bytes(8, "little") + b"{}      "
"""A tensor file without tensors: what is sent back of an order that trains nothing."""
EMPTY_DIGEST = hashlib.sha256(EMPTY_UPDATE).hexdigest()
