"""The verbs of the command line as functions; each is a method of :class:`apportion.Federation` or a few lines here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apportion import given
from apportion.callbacks import OnCommit, OnReport, OnRound, watchers_of
from apportion.federation import COMMAND, Federation
from apportion.history import History, load
from apportion.rows import Findings, Rows
from apportion.run_tables import model_table
from apportion.torch_threads import torch_threads_kept
from coordinator.audit_log.actors import set_command
from coordinator.methods import METHODS
from coordinator.models import MODELS
from edge.contracts.errors import ConfigError
from edge.runtimes import DEFAULT

if TYPE_CHECKING:
    from coordinator.cli.model_arguments import ModelArguments
    from coordinator.methods.method import Method
    from edge.contracts.inference import InferenceManifest


def methods() -> list[str]:
    """Names of the methods that come with this release."""
    return sorted(METHODS)


def models() -> list[str]:
    """Names of the models that come with this release."""
    return sorted(MODELS)


def method_class(name: str) -> type[Method]:
    """The class of the method ``name``, to derive one's own from.

    Raises:
        ConfigError: an unknown method; lists the known ones.
    """
    from coordinator.methods import method_class as found

    return found(name)


def doctor(subject: Any = None, *, input_shape: Sequence[int] = (), classes: int = 0) -> Findings:
    """What would stop a run before it starts: of this machine, of a run file (path), of a federation, or of a model.

    Args:
        subject: nothing; a path that ends with ``.toml``; a Federation; a model as a Federation takes it.
        input_shape, classes: of an own model: the shape of one example, and how many classes.
    """
    from coordinator.cli.doctor import config_findings, here_findings, model_finding, report_of

    if isinstance(subject, Federation):
        return subject.doctor()
    here = here_findings()
    if subject is None:
        return Findings([finding.as_dict() for finding in here])
    if isinstance(subject, Path) or str(subject).endswith(".toml"):
        return Findings([finding.as_dict() for finding in [*here, *config_findings(Path(subject))]])
    report = report_of(_model_name(subject), tuple(input_shape), classes)
    found = [*here, model_finding(report)]
    layers = report.as_dict().get("rows", [])
    return Findings([finding.as_dict() for finding in found], layers)


def plan(config: str | Path, *devices: str, profiles: str | Path | None = None, budget_mb: float = 0.0) -> Rows:
    """As :meth:`Federation.plan` of a run file."""
    return Federation(config).plan(*devices, profiles=profiles, budget_mb=budget_mb)


def simulate(config: str | Path, run_dir: str | Path | None = None, **options: Any) -> History:
    """As :meth:`Federation.simulate` of a run file."""
    return Federation(config).simulate(run_dir, **options)


def run(config: str | Path, run_dir: str | Path | None = None, **options: Any) -> History:
    """As :meth:`Federation.run` of a run file."""
    return Federation(config).run(run_dir, **options)


def resume(
    run_dir: str | Path,
    *,
    local_devices: int | None = None,
    allow_code: bool = False,
    allow_keys: bool = False,
    allow_env: Sequence[str] = (),
    on_round: OnRound | None = None,
    on_report: OnReport | None = None,
    on_commit: OnCommit | None = None,
    quiet: bool = False,
) -> History:
    """Go on with an interrupted run from the last thing that is on disk; a finished one gives its history again.

    A model or data that was handed over as an object is looked for in this process: build the same Federation first.

    Args:
        allow_code, allow_keys, allow_env: what a run that was not begun here may use of this account's.

    Raises:
        ConfigError: there is no run, or it names what this process cannot import.
    """
    from coordinator.cli.open_run import RunOptions
    from coordinator.cli.resume import go_on

    folder = Path(run_dir)
    set_command(COMMAND)
    watchers = watchers_of(on_round, on_report, on_commit)
    options = RunOptions(local_devices=local_devices, quiet=quiet, watchers=watchers)
    with torch_threads_kept():
        go_on(folder, options, allow_code=allow_code, allow_keys=allow_keys, allow_env=allow_env)
    return History(folder)


def export(
    model: Any,
    out: str | Path,
    *,
    input_shape: Sequence[int] = (),
    classes: int = 0,
    batch: int = 32,
    runtime: str = DEFAULT,
    cut: str = "",
    freeze: int = 0,
) -> dict[str, Any]:
    """Write the verified training artifact of a model into the new folder ``out``; its figures.

    Args:
        model: as a Federation takes it.
        cut: ``method:level[,key=value]``, ``fedhm:4``; empty for the whole model.
        freeze: number of blocks, after the stem, whose parameters are frozen.

    Raises:
        ConfigError: unknown names, or a folder that is not empty; ExportRefused; ParityError.
    """
    from coordinator.cli.export import exported

    arguments = _arguments(model, input_shape, classes, batch, freeze, cut)
    return exported(arguments, runtime, Path(out))[0]


def deploy(run_dir: str | Path, out: str | Path, **options: Any) -> InferenceManifest:
    """As :meth:`History.deploy` of the run or simulation in ``run_dir``.

    Raises:
        ConfigError: there is none.
    """
    return load(run_dir).deploy(out, **options)


def bench(
    model: str,
    *,
    input_shape: Sequence[int] = (),
    classes: int = 0,
    batch: int = 32,
    runtime: str = DEFAULT,
    threads: int = 1,
    cut: str = "",
    blocks: int = 9,
) -> dict[str, Any]:
    """Time and memory of a training step on a device runtime and in torch, each in a process of its own.

    Raises:
        ConfigError: a model without an import path, or what :func:`export` raises.
    """
    from coordinator.cli.bench import measured_step

    arguments = _arguments(model, input_shape, classes, batch, 0, cut)
    if given.is_given(arguments.model):
        raise ConfigError(["model: other processes measure it, and cannot import it; put it into a module of its own"])
    return measured_step(arguments, runtime, threads, blocks)


def _model_name(model: Any) -> str:
    return str(model_table(model)["build"])


def _arguments(
    model: Any, input_shape: Sequence[int], classes: int, batch: int, freeze: int, cut: str
) -> ModelArguments:
    from coordinator.cli.model_arguments import ModelArguments

    return ModelArguments(_model_name(model), tuple(input_shape), classes, batch, freeze, cut)
