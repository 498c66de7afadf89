"""Run on a device: the losses of the first self-test steps of artifact folders, as one JSON line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from edge.runtimes import runtime
from edge.training.artifact_folder import read_artifact_folder
from edge.training.self_test import self_test_losses


def main(folders: list[str]) -> None:
    """Print folder -> losses, and what else a test wants to know of this process."""
    losses = {}
    for folder in folders:
        manifest, files = read_artifact_folder(Path(folder))
        session = runtime(manifest.runtime).load(manifest, files, threads=1)
        losses[folder] = self_test_losses(session, manifest, steps=len(manifest.self_test.losses))
    print(json.dumps({"losses": losses, "torch": "torch" in sys.modules}))


if __name__ == "__main__":
    main(sys.argv[1:])
