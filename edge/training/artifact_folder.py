"""An artifact as a folder: its manifest and files, digests checked, and its self-test run here. Needs no torch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from edge.contracts.errors import ArtifactCorrupt, ConfigError
from edge.contracts.manifest import ArtifactManifest

MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True)
class SelfTestResult:
    """What :func:`self_test_folder` found.

    Attributes:
        loss_rel_err: largest difference of a loss from the manifest's, relative to that; at most ``tolerance``.
        steps: losses compared.
    """

    runtime: str
    loss_rel_err: float
    tolerance: float
    steps: int


def read_artifact_folder(folder: Path) -> tuple[ArtifactManifest, dict[str, Path]]:
    """The manifest in ``folder`` and the path of each of its files, digests checked.

    Raises:
        ConfigError: no artifact is there.
        ArtifactCorrupt: a file is missing or has another digest.
        MessageRejected: the manifest cannot be read.
    """
    try:
        manifest = ArtifactManifest.from_bytes((folder / MANIFEST_NAME).read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(
            [f"{folder}: no artifact there, it has no {MANIFEST_NAME}"],
            hint="give a folder that apportion export wrote",
        ) from error
    except OSError as error:
        raise ArtifactCorrupt(f"artifact {folder}: {error}; export or fetch it again") from error
    paths = {file.name: folder / file.name for file in manifest.files}
    for file in manifest.files:
        try:
            digest = hashlib.sha256(paths[file.name].read_bytes()).hexdigest()
        except OSError as error:
            raise ArtifactCorrupt(f"artifact {folder}: {error}; export or fetch it again") from error
        if digest != file.sha256:
            raise ArtifactCorrupt(
                f"artifact {folder}: {file.name} has digest {digest[:12]}, manifest says {file.sha256[:12]}; "
                "fetch it again"
            )
    return manifest, paths


def self_test_folder(folder: Path) -> SelfTestResult:
    """Run the self-test of the artifact in ``folder`` on its runtime, or the one that checks for it.

    Raises:
        ConfigError: no artifact there, or its runtime is not installed.
        ArtifactCorrupt: as :func:`read_artifact_folder`; also MessageRejected.
        DeviceRefused: a loss is not the manifest's, or the runtime cannot run the artifact.
    """
    from edge.runtimes.checking import checking_runtime
    from edge.training.self_test import check_self_test

    manifest, paths = read_artifact_folder(folder)
    session = checking_runtime(manifest.runtime).load(manifest, paths, threads=1)
    test = manifest.self_test
    error = check_self_test(session, manifest, steps=len(test.losses))
    return SelfTestResult(manifest.runtime, error, test.rel_tolerance, len(test.losses))
