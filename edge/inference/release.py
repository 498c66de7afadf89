"""The model that was sent to this device, with what the device has trained for itself where that fits."""

from __future__ import annotations

from pathlib import Path

from edge.inference.predictor import Predictor
from edge.releases.installed import Release, Releases
from edge.releases.own_tensors import kept_at, tuned_at


def predictor_of(store: str | Path, *, threads: int = 1) -> Predictor:
    """The model in use on the device whose agent has its store there.

    Raises:
        ConfigError: none was sent, or its layers of one's own are not here; also what :class:`Predictor` raises.
    """
    root = Path(store)
    releases = Releases(root)
    release = releases.read().current
    return Predictor(releases.folder_of(release), threads=threads, own=_own(root, release))


def _own(store: Path, release: Release) -> Path | None:
    """What the device has of its own for the model: what it fine-tuned, else the layers that it keeps, else nothing."""
    if not release.uses_own:
        return None
    return next((path for path in (tuned_at(store, release), kept_at(store, release)) if path.is_file()), None)
