"""Steps by a device's own runtime in a simulation: artifacts as devices would be sent, and sessions that run them here.

A simulated device then does what a real one does, kernel for kernel, and its update has the same bits. Artifacts are
exported once, pass the gate as for devices, and are kept for later runs.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.config.run_config import TORCH
from coordinator.language.source import is_language
from coordinator.planning.export_cache import MANIFEST, ExportCache
from edge.contracts.errors import ConfigError
from edge.contracts.manifest import ArtifactManifest
from edge.runtimes import runtime

if TYPE_CHECKING:
    from coordinator.config.run_config import RunConfig
    from coordinator.exporting.cut_exporter import CutExporter
    from coordinator.submodels.record import Cut
    from coordinator.submodels.values import DeviceProgram
    from edge.runtimes.base import Session


def check_runtime(config: RunConfig, device: str) -> None:
    """Whether this machine can simulate with ``[simulation] runtime`` what the run asks for.

    Raises:
        ConfigError: it is not installed, or cannot do what else the run asks for.
    """
    name = config.simulation.runtime
    if name == TORCH:
        return
    key = f'$.simulation.runtime: "{name}" given'
    if device != "cpu":
        raise ConfigError([f"{key}; it computes on the processor, not on {device}; leave out --device, or use torch"])
    if config.simulation.precision != "float32":
        raise ConfigError(
            [f'{key}; devices multiply in float32, and precision is "{config.simulation.precision}"; leave one out']
        )
    if is_language(config.model.build):
        raise ConfigError([f'{key}; language models are simulated by torch alone; use "{TORCH}"'])
    runtime(name).version()


class RuntimeArtifacts:
    """Sessions of a run's device runtime, by what they train; they need this object for as long as they are used.

    Args:
        kept: folder in which the run's artifacts stay, unless the run file names one for all runs; None: none does.
        threads: of each session.
    """

    def __init__(self, exporter: CutExporter, config: RunConfig, kept: Path | None, *, threads: int) -> None:
        self._exporter, self._name, self._threads = exporter, config.simulation.runtime, threads
        self._folder = Path(tempfile.mkdtemp(prefix="apportion-simulate-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        # Not one folder for all runs by default: a key covers a model's classes, not the functions that they call.
        named = Path(config.planner.export_cache) if config.planner.export_cache else kept
        self._cache = ExportCache(self._folder / "kept" if named is None else named)

    def open(self, cut: Cut, program: DeviceProgram) -> tuple[ArtifactManifest, Session]:
        """The artifact of a submodel, exported now where it is not at hand, and a session of it.

        Raises:
            ExportRefused, ParityError: as for a device.
        """
        key = self._exporter.key(cut, program, self._name)
        folder = self._folder / key
        if folder.exists():
            manifest = ArtifactManifest.from_bytes((folder / MANIFEST).read_bytes())
        else:
            manifest = self._cache.get(key, folder, partial(self._exporter.export, cut, program, self._name, folder))
        files = {file.name: folder / file.name for file in manifest.files}
        return manifest, runtime(self._name).load(manifest, files, threads=self._threads)
