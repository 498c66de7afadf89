"""Losses of the first training steps of an artifact, as its device runtime computes them; needs no torch.

    python -m benchmarks.artifact_losses ARTIFACT VALUES.safetensors --steps 5

Runs in the runtime's own environment. The file holds every input of the ``train`` program by name, state included; the
same batch is fed in every step. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from edge.contracts.tensor_file import read_tensor_file
from edge.contracts.tensors import STATE_ROLES
from edge.runtimes import runtime
from edge.training.artifact_folder import read_artifact_folder


def artifact_losses(folder: Path, values: Path, steps: int) -> list[float]:
    """``steps`` losses on one thread."""
    manifest, files = read_artifact_folder(folder)
    given = read_tensor_file(values, where="values")
    session = runtime(manifest.runtime).load(manifest, files, threads=1)
    state = {t.name for t in manifest.tensors if t.role in STATE_ROLES}
    session.load_state({name: value for name, value in given.items() if name in state})
    feeds = {name: given[name] for name in manifest.program("train").inputs if name not in state}
    return [session.run("train", feeds)["loss"] for _ in range(steps)]


def main() -> None:
    """Read the arguments, print losses and the runtime's release."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("values", type=Path)
    parser.add_argument("--steps", type=int, default=5)
    chosen = parser.parse_args()
    losses = artifact_losses(chosen.artifact, chosen.values, chosen.steps)
    release = runtime(read_artifact_folder(chosen.artifact)[0].runtime).version()
    print(json.dumps({"losses": losses, "version": release}))


if __name__ == "__main__":
    main()
