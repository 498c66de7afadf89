"""The final model of a run sent to its devices: written for each of their runtimes, checked, and installed by them."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.cli.final_model import final_model
from coordinator.cli.open_run import RunOptions, opened_run
from coordinator.cli.preparation import prepare
from coordinator.cli.run_directory import lock_run
from coordinator.config.run_config import RunConfig
from coordinator.deployment.fleet import deploy_to_fleet
from coordinator.deployment.inference_folder import deploy
from coordinator.deployment.model_files import no_int8
from coordinator.language.source import is_language
from coordinator.reporting.progress import Progress
from coordinator.submodels.values import State
from edge.contracts.errors import ConfigError
from edge.runtimes import traits_of

MOST_NAME = 256


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """What the command line says.

    Attributes:
        name: of the release; empty: of the federation and its rounds.
        wait_s: how long devices are waited for.
        local_devices: agents to start here; None: those of ``[[cohort.local]]``.
        int8: for the runtimes whose models are written in it; the others' stay in float32.
        max_drop: how much accuracy that may cost.
    """

    name: str = ""
    wait_s: float = 60.0
    local_devices: int | None = None
    int8: bool = False
    max_drop: float = 0.02
    allow_code: bool = False
    quiet: bool = False


def sent_to_fleet(run_dir: Path, options: FleetOptions) -> dict[str, Any]:
    """Send the final model of the run in ``run_dir`` to its devices; who installed it, who refused, who was silent.

    Raises:
        ConfigError: a simulation, a run of several coordinators, or one whose runtimes predict nothing.
        LedgerError: the run has not ended; ParityError: the model's file is too far from torch.
        DeadlineExpired: no device came.
    """
    if (run_dir / "simulation.json").is_file():
        raise ConfigError([f"--fleet: {run_dir} is a simulation's, which has no devices; give --out"])
    if len(options.name) > MOST_NAME:
        raise ConfigError([f"--name: has {len(options.name)} characters, at most {MOST_NAME}"])
    config, state = final_model(run_dir, allow_code=options.allow_code)
    if is_language(config.model.build):
        raise ConfigError(
            [
                f"--fleet: {config.model.build} is a language model, whose weights no order carries; write it "
                "with --out DIR and copy DIR to the device, where apportion generate DIR runs it"
            ]
        )
    if config.store.ledger:
        raise ConfigError(
            ["--fleet: this run's ledger is on a server that several coordinators share; deploy it with --out and copy"]
        )
    progress = Progress(stream=None if options.quiet else sys.stderr, metrics=run_dir / "metrics.jsonl")
    name = options.name or f"{config.federation.name}, {state.round} rounds{', int8' if options.int8 else ''}"
    run_options = RunOptions(local_devices=options.local_devices, quiet=options.quiet)
    with tempfile.TemporaryDirectory(prefix="apportion-fleet-") as folder, lock_run(run_dir):
        folders = _written(config, state, Path(folder), options, progress)
        prepared = prepare(config)
        with opened_run(config, run_dir, run_options, prepared, progress, starts_agents=True) as run:
            found = deploy_to_fleet(run.federation, folders, name=name, wait_s=options.wait_s)
    return {"name": name, "ok": bool(found["installed"]), **found, **_failure(found)}


def _failure(found: dict[str, Any]) -> dict[str, Any]:
    if found["installed"]:
        return {}
    message = f"no device installed it: {len(found['refused'])} refused, {len(found['silent'])} did not answer"
    return {"error": {"code": "not-deployed", "message": message, "hint": "look at the reasons, then send it again"}}


def _written(
    config: RunConfig, state: State, folder: Path, options: FleetOptions, progress: Progress
) -> dict[str, Path]:
    """Runtime -> the folder of the model for it, of every runtime of the run that predicts."""
    folders = {}
    for runtime in config.runtime.names:
        suffix = traits_of(runtime).inference
        if not suffix:
            progress.say(f"devices with {runtime} are left out: it predicts with no file of this release")
            continue
        is_int8 = options.int8 and not no_int8(runtime)
        manifest = deploy(
            config,
            state,
            folder / runtime,
            format=suffix,
            precision="int8" if is_int8 else "float32",
            max_drop=options.max_drop,
            is_for_fleet=True,
        )
        folders[runtime] = folder / runtime
        progress.say(
            f"{manifest.file.name} in {manifest.precision}, {manifest.file.size / 1e6:.2f} MB: {manifest.described()}"
        )
    if not folders:
        raise ConfigError(
            [f"$.runtime.name: {', '.join(config.runtime.names)} predict with no file of this release; use --out"]
        )
    return folders
