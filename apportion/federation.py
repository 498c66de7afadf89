"""A federation as a value: what it trains, on which data, how; and what can be done with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apportion import given
from apportion.callbacks import OnCommit, OnReport, OnRound, watchers_of
from apportion.history import History
from apportion.rows import Findings, Rows
from apportion.run_tables import (
    Method,
    Table,
    Task,
    data_table,
    local_table,
    method_table,
    model_table,
    plain,
    task_table,
    training_table,
)
from apportion.torch_threads import torch_threads_kept
from coordinator.audit_log.actors import set_command
from coordinator.config.cohort import LocalGroup
from coordinator.config.run_config import RunConfig
from coordinator.config.training import TrainingConfig
from coordinator.run_file.extends import merged, read_document
from coordinator.run_file.loading import read_config
from edge.contracts.errors import ConfigError
from export.tasks import CLASSIFICATION

PLAN_COLUMNS = ("device", "count", "budget_mb", "level", "runtime", "form", "predicted_peak_bytes", "error")
COMMAND = "(Python)"


class Federation:
    """A checked run file, made from a file, from objects, or from a file and what differs from it.

    Args:
        config: path of a run file.
        model: a torch module (its weights are the first ones), a function or class that builds one (called with
            ``input_shape`` and ``classes`` where it takes them), a name of :func:`apportion.models`, or
            ``package.module:function``; or the table ``[model]`` with one of these as ``build``.
        data: ``(x, y)``, of which ``evaluation["holdout"]`` is held out; ``(x_train, y_train, x_test, y_test)``; a
            :class:`apportion.Dataset`; a folder as devices read it; a function that gives one of these, called here
            and now; a function of (path, seed, holdout) that gives a Dataset, called when a run begins; a name of a
            data source or ``package.module:function``. Within :class:`apportion.Data` or a table ``[data]`` to say how
            examples are dealt out and normalised.
        task: what is trained for, where it is not one class for each example: its name, a class of one's own, a
            :class:`apportion.Task` with options, or ``module`` for a model with its own ``training_step``. ``data`` may
            then be a mapping of named arrays, ``x`` among them.
        method: its name, a class of one's own, or a :class:`apportion.Method` with options; ``fedavg`` unless the file
            says otherwise.
        training: a :class:`apportion.Train` in place of the file's, or a table whose keys are changed.
        devices: how many local devices, or their groups (:class:`apportion.LocalDevices`).
        tables: further tables of the run file, ``evaluation={"norm": "batch"}``. A file's keys stay unless changed.

    Attributes:
        config: the run file, checked.

    Raises:
        ConfigError: any number of problems, all of them listed with their paths.
    """

    def __init__(
        self,
        config: str | Path | None = None,
        *,
        name: str | None = None,
        model: Any = None,
        data: Any = None,
        task: str | Task | type | Mapping[str, Any] | None = None,
        method: str | Method | type | Mapping[str, Any] | None = None,
        training: TrainingConfig | Mapping[str, Any] | None = None,
        devices: int | Sequence[LocalGroup | Mapping[str, Any]] | None = None,
        rounds: int | None = None,
        seed: int | None = None,
        **tables: Mapping[str, Any],
    ) -> None:
        document, folder = _file(config)
        document = merged(document, {table: _checked(table, value) for table, value in tables.items()})
        head = {"name": name, "rounds": rounds, "seed": seed}
        document = merged(document, {"federation": {key: value for key, value in head.items() if value is not None}})
        if config is None:
            document = merged({"federation": {"name": "federation"}, "method": {"name": "fedavg"}}, document)
        if task is not None:
            document["task"] = task_table(task)
        start = document["federation"].get("seed", 0)
        found, examples = data_table(
            data,
            document.get("data", {}),
            document.get("evaluation", {}),
            start if isinstance(start, int) else 0,
            has_task=document.get("task", {}).get("name", CLASSIFICATION) != CLASSIFICATION,
        )
        document["data"] = found
        if model is not None:
            replaced = model_table(model, examples)
            document["model"] = merged(document.get("model", {}), replaced) if isinstance(model, Mapping) else replaced
        if method is not None:
            document["method"] = method_table(method)
        if training is not None:
            table = training_table(training)
            whole = isinstance(training, TrainingConfig)
            document["training"] = table if whole else merged(document.get("training", {}), table)
        if devices is not None:
            document["cohort"] = merged(document.get("cohort", {}), {"local": local_table(devices)})
        self.config: RunConfig = read_config(document, folder=folder)

    @property
    def given_objects(self) -> tuple[str, ...]:
        """What of this federation was handed over as an object, and can be found by no other process."""
        config = self.config
        named = (config.model.build, config.data.source, config.method.name, config.task.name)
        return tuple(name for name in named if given.is_given(name))

    def doctor(self) -> Findings:
        """What would stop a run: data, model, method, runtimes and broker, each looked at."""
        from coordinator.cli.doctor import findings_of, here_findings

        found = [*here_findings(), *findings_of(self.config, self.config.federation.name)]
        return Findings([finding.as_dict() for finding in found])

    def plan(self, *devices: str, profiles: str | Path | None = None, budget_mb: float = 0.0) -> Rows:
        """The level that each group of local devices gets, or each of the catalog's ``devices``.

        Exports what it has to look at, into a folder that is thrown away.

        Args:
            profiles: folder of stored profiles that names are looked up in, too.
            budget_mb: what an agent on each of ``devices`` may use; 0: all of its memory.

        Returns:
            A row each; one that nothing fits has the reason in ``error`` and no ``level``.
        """
        from coordinator.cli.plan import planned

        folder = None if profiles is None else Path(profiles)
        return Rows([row for _, _, row in planned(self.config, devices, folder, budget_mb)], PLAN_COLUMNS)

    def export(self, out: str | Path, *, level: str | float | None = None, runtime: str = "") -> Rows:
        """Write the verified artifact that a device of ``level`` gets into the new folder ``out``; a row for each file.

        Args:
            level: name or value of one of the method's levels; its largest unless given.
            runtime: the run's first unless given.

        Raises:
            ConfigError: no such level, or a folder that is not empty; ExportRefused; ParityError.
        """
        from coordinator.exporting.cut_exporter import CutExporter, dense_module
        from coordinator.run_file.checks import method_of_run

        folder = Path(out)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError([f"out: {folder} is there already and is not an empty folder; name a new one"])
        method = method_of_run(self.config, dense_module(self.config))
        levels = method.levels()
        chosen = [one for one in levels if level in (one.name, one.value)] if level is not None else list(levels[:1])
        if not chosen:
            known = ", ".join(f"'{one.name}' ({one.value:g})" for one in levels)
            raise ConfigError([f"level: {self.config.method.name} has no level {level!r}; its levels are {known}"])
        cut = method.cut_shape(chosen[0], round_index=0, device="", seed=self.config.federation.seed)
        manifest = CutExporter(self.config).export(
            cut, method.program(cut), runtime or self.config.runtime.names[0], folder
        )
        return Rows([{"file": file.name, "bytes": file.size} for file in manifest.files])

    def simulate(
        self,
        run_dir: str | Path | None = None,
        *,
        workers: int = 1,
        device: str = "cpu",
        runtime: str = "",
        on_round: OnRound | None = None,
        on_report: OnReport | None = None,
        on_commit: OnCommit | None = None,
        quiet: bool = False,
    ) -> History:
        """Train with devices that torch or a runtime stands in for; goes on with an unfinished one in ``run_dir``.

        Args:
            run_dir: ``runs/<name>-<time>`` unless given.
            workers: processes that train; the result does not depend on it.
            device: where torch computes: cpu or cuda.
            runtime: what computes the steps: torch, or a device runtime by name, with the bits of devices that have it.
            quiet: no progress on stderr.

        Raises:
            ConfigError: an unknown runtime; several workers for a model that no other process can import.
        """
        from coordinator.cli.simulate import simulate_in, with_runtime
        from coordinator.simulation.assembly import SimulationOptions

        if workers > 1 and given.is_given(self.config.model.build):
            raise ConfigError(
                [
                    f"workers: {workers} processes cannot have a model that was handed over as an object "
                    f"({self.config.model.build}); use workers=1, or a model that can be imported"
                ]
            )
        folder = self._run_dir(run_dir)
        set_command(COMMAND)
        options = SimulationOptions(workers, device, quiet, watchers_of(on_round, on_report, on_commit))
        with torch_threads_kept():
            simulate_in(with_runtime(self.config, runtime), folder, options)
        return History(folder, is_own=True)

    def run(
        self,
        run_dir: str | Path | None = None,
        *,
        local_devices: int | None = None,
        allow_env: Sequence[str] = (),
        on_round: OnRound | None = None,
        on_report: OnReport | None = None,
        on_commit: OnCommit | None = None,
        quiet: bool = False,
    ) -> History:
        """Train with devices over a broker: agents that are started here, and whoever joins.

        Blocks until the last round. Within an event loop: ``await asyncio.to_thread(federation.run)``.

        Args:
            run_dir: ``runs/<name>-<time>`` unless given.
            local_devices: agents to start here; those of ``devices`` unless given, 0 for none.
            allow_env: variables whose value may go to the broker although their names do not begin with ``APPORTION_``.
            quiet: no progress on stderr.

        Raises:
            ConfigError: a run is in ``run_dir`` already; PlanError; DeadlineExpired; BrokerUnreachable.
        """
        from coordinator.cli.assembly import start_run
        from coordinator.cli.open_run import RunOptions
        from coordinator.cli.own_code import check_variable
        from coordinator.cli.run import check_new, resumable

        check_variable(self.config, allow_env)
        folder = self._run_dir(run_dir)
        check_new(folder)
        set_command(COMMAND)
        watchers = watchers_of(on_round, on_report, on_commit)
        with resumable(folder), torch_threads_kept():
            start_run(self.config, folder, RunOptions(local_devices=local_devices, quiet=quiet, watchers=watchers))
        return History(folder, is_own=True)

    def __repr__(self) -> str:
        config = self.config
        return (
            f"Federation('{config.federation.name}': {config.model.build}, {config.method.name}, "
            f"{config.federation.rounds} rounds, {config.cohort.size} devices in a round)"
        )

    def _run_dir(self, run_dir: str | Path | None) -> Path:
        from coordinator.cli.run import default_run_dir

        return default_run_dir(self.config) if run_dir is None else Path(run_dir)


def _file(config: str | Path | None) -> tuple[Table, Path]:
    """The tables of a run file, and the folder that its paths count from."""
    if config is None:
        return {}, Path.cwd()
    path = Path(config)
    try:
        return read_document(path.read_text(encoding="utf-8"), path.resolve().parent), path.resolve().parent
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: cannot be read ({error})"], hint="give the path of a run file") from error


def _checked(name: str, table: Any) -> Table:
    if not isinstance(table, Mapping):
        known = ", ".join(sorted(set(RunConfig.__struct_fields__) - {"federation", "model", "method", "data"}))
        raise ConfigError([f"$.{name}: a {type(table).__name__} given; a table expected, one of {known}"])
    return plain(table)
