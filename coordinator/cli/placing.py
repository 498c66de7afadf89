"""Placements without agents: of local groups and of devices by name. Idle sizes of those without are measured here.

Artifacts are exported into a folder that is thrown away, or kept in the run's export cache.
"""

from __future__ import annotations

import contextlib
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from coordinator.blobs.blob_store import BlobStore
from coordinator.config.canonical import canonical_toml
from coordinator.config.cohort import LocalGroup
from coordinator.config.run_config import RunConfig
from coordinator.distillation.proxy import require_proxy
from coordinator.exporting.cut_exporter import CutExporter, dense_module
from coordinator.exporting.model_form import base_choices
from coordinator.exporting.shorter_window import shorter_window
from coordinator.ledger.ledger import Ledger
from coordinator.methods.method import Method
from coordinator.planning.artifacts import Artifacts
from coordinator.planning.capacity_levels import group_level
from coordinator.planning.native_orders import takes_native_orders
from coordinator.planning.planner import MB, Placement, choose_runtimes, place, require_able
from coordinator.planning.requests import Requests
from coordinator.planning.search import NothingFits
from coordinator.planning.steps import ArtifactSteps
from coordinator.run_file.checks import method_of_run
from coordinator.submodels.record import Cut
from coordinator.submodels.values import DeviceProgram, Level
from edge.contracts.errors import ConfigError, DeviceRefused, ExportRefused, ParityError, PlanError
from edge.measuring.idle_size import measure_idle_sizes, native_idle_bytes
from edge.runtimes import traits_of
from edge.runtimes.environments import runtime_python
from profiles.device import DeviceProfile
from profiles.known_devices import known_device
from profiles.stored_profile import ProfileUnusable, read_profiles

IdleSizes = Callable[[str], tuple[int, int]]


@dataclass(frozen=True)
class Placed:
    """A device, or a group of equal ones, with its placement or the reason there is none.

    Attributes:
        title: what it is, for people.
    """

    profile: DeviceProfile
    title: str
    placement: Placement | PlanError


def place_groups(config: RunConfig) -> list[tuple[LocalGroup, Placed]]:
    """Each local group with its placement. Exports what it has to look at.

    Raises:
        ApportionError: the run's only runtime cannot be started here or cannot train the model; where there are
            several, that is the reason for its groups.
    """
    placed = []
    with _Handler.open(config) as handler:
        for number, group in enumerate(config.cohort.local):
            name = f"cohort.local[{number}]"
            runtime = config.runtime.of_group(group)
            profile = handler.local_profile(name, round(group.budget_mb * MB), runtime)
            given = group_level(config, number, handler.method.levels())
            placed.append((group, handler.place(profile, (runtime,), name, given)))
    return placed


def place_devices(config: RunConfig, names: Sequence[str], profiles: Path | None, budget_mb: float) -> list[Placed]:
    """The devices called ``names``: of the folder ``profiles``, else of the catalog, with a budget unless it is 0.

    Raises:
        ConfigError: a name is in neither. Also as :func:`place_groups`.
    """
    found = [_named(name, profiles) for name in names]
    placed = []
    with _Handler.open(config) as handler:
        for profile, title in found:
            if budget_mb:
                profile = msgspec.structs.replace(profile, budget_bytes=round(budget_mb * MB))
            has = [name for name, size in profile.trainer_idle_bytes.items() if size]
            runtimes = [name for name in config.runtime.names if name in has] if has else config.runtime.names
            placed.append(handler.place(profile, runtimes or config.runtime.names, title, None))
    return placed


def _named(name: str, folder: Path | None) -> tuple[DeviceProfile, str]:
    try:
        stored = read_profiles(folder) if folder is not None else {}
        if name in stored:
            return stored[name].profile, f"stored profile, by {stored[name].method}"
        known = known_device(name)
        return known.profile(), known.title
    except ProfileUnusable as error:
        where = f", nor in {folder}" if folder is not None else ""
        raise ConfigError([f"--device {name}: {error}{where}"]) from error


@dataclass(frozen=True)
class _Handler:
    config: RunConfig
    method: Method
    artifacts: Artifacts
    idle_sizes: IdleSizes

    @classmethod
    @contextlib.contextmanager
    def open(cls, config: RunConfig) -> Iterator[_Handler]:
        method = method_of_run(config, dense_module(config))
        require_proxy(method)

        @cache
        def idle_sizes(runtime: str) -> tuple[int, int]:
            # A browser's own cannot be measured here: that of the runtime with the same operators stands in for it.
            here = traits_of(runtime).checked_by or runtime
            python = runtime_python(here, config.runtime.environments.get(here, ""))
            return measure_idle_sizes(here, python=str(python))

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ledger.sqlite"
            with Ledger.create(path, federation="plan", config=canonical_toml(config), seed=0) as ledger:
                blobs = BlobStore(Path(folder) / "blobs")
                artifacts = Artifacts(CutExporter(config), ledger, blobs, cache=config.planner.export_cache)
                yield cls(config, method, artifacts, idle_sizes)

    def place(self, profile: DeviceProfile, runtimes: Sequence[str], title: str, given: Level | None) -> Placed:
        """The placement of a device on one of ``runtimes``, those of which it has no idle size of measured here."""
        seed, only = self.config.federation.seed, len(self.config.runtime.names) == 1
        able: list[str] = []
        refusals: list[PlanError] = []
        for name in runtimes:
            try:
                require_able(self.method, name, self.artifacts.unable, seed=seed)
                profile = self._with_idle_sizes(profile, name)
                able.append(name)
            except PlanError as error:
                refusals.append(error)
            except (ConfigError, DeviceRefused) as error:
                if only:
                    raise
                refusals.append(PlanError(f"{profile.device}: cannot train on its runtime '{name}': {error}"))
        if not able:
            return Placed(profile, title, refusals[-1])

        if takes_native_orders(self.config, self.method):
            profile = profile.for_native_orders()

        def shape(level: Level) -> tuple[Cut, DeviceProgram]:
            cut = self.method.cut_shape(level, round_index=0, device="", seed=seed)
            return cut, self.method.program(cut)

        try:
            placement = place(
                profile,
                choose_runtimes(profile, able if self.config.planner.runtimes == "best" else able[:1]),
                self.method.levels() if given is None else (given,),
                ArtifactSteps(self.artifacts, shape, batch=self.config.training.batch),
                Requests.of(self.config, base_choices(self.config)),
            )
        except NothingFits as error:
            shorter = shorter_window(self.config, self.method, profile, able[0])
            told = NothingFits(f"{error}; or let it have shorter windows: {shorter}", error.tried) if shorter else error
            return Placed(profile, title, told)
        except PlanError as error:
            return Placed(profile, title, error)
        except (ConfigError, ExportRefused, ParityError) as error:
            if only:
                raise
            why = f"{profile.device}: cannot train on its runtime '{able[0]}': {error}"
            return Placed(profile, title, PlanError(why))
        return Placed(profile, title, placement)

    def local_profile(self, name: str, budget_bytes: int, runtime: str) -> DeviceProfile:
        """A local device, whose trainer without Python, where this machine has one, reads the shards it gets."""
        profile = DeviceProfile(device=name, budget_bytes=budget_bytes)
        with contextlib.suppress(ConfigError, DeviceRefused):  # told where the runtime's idle sizes are asked for
            self.idle_sizes(runtime)  # a Python trainer's first start may build the one without Python
            if size := native_idle_bytes(runtime, python=str(self._python(runtime))):
                return msgspec.structs.replace(profile, native_idle_bytes={runtime: size})
        return profile

    def _python(self, runtime: str) -> Path:
        return runtime_python(runtime, self.config.runtime.environments.get(runtime, ""))

    def _with_idle_sizes(self, profile: DeviceProfile, runtime: str) -> DeviceProfile:
        if profile.supervisor_idle_bytes and profile.trainer_idle_bytes.get(runtime):
            return profile
        supervisor, trainer = self.idle_sizes(runtime)
        sizes = {**profile.trainer_idle_bytes, runtime: trainer}
        told = f"measured on this machine ({platform.machine()})"
        return msgspec.structs.replace(
            profile,
            supervisor_idle_bytes=profile.supervisor_idle_bytes or supervisor,
            trainer_idle_bytes=sizes,
            sources={**profile.sources, "trainer_idle_bytes": told},
        )
