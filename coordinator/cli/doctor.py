"""``apportion doctor``: what this machine has, what a configuration still lacks, which runtimes train a model."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from coordinator.cli.command import parse_problem, verb
from coordinator.cli.finding import Finding
from coordinator.cli.own_code import ENV_HELP, check_variable
from coordinator.cli.waiting import waiting
from edge.contracts.errors import ApportionError
from edge.contracts.release import PYTHON_RANGE, PYTHONS
from edge.runtimes import DEFAULT, RUNTIMES, traits_of
from profiles.system_files import SystemFiles
from profiles.system_memory import memory

if TYPE_CHECKING:
    from coordinator.cli.doctor_model import ModelReport
    from coordinator.config.run_config import RunConfig

EXAMPLE = "Example: apportion doctor examples/digits.toml"
BROKER_TIMEOUT_S = 5.0
BATCH = 32
"""Examples per step a model is looked at with; what its layers fare like does not depend on it."""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("doctor", epilog=EXAMPLE)(doctor)


@verb("doctor")
def doctor(
    subject: Annotated[
        str, typer.Argument(metavar="[MODEL|CONFIG]", help="a run file, a model as for export --model")
    ] = "",
    input_shape: Annotated[str, typer.Option("--input", help="shape of one example, for an own model")] = "",
    classes: Annotated[int, typer.Option(min=0, help="number of classes, for an own model")] = 0,
    freeze: Annotated[int, typer.Option(min=0, help="of a model: freeze the stem and the first K blocks")] = 0,
    cut: Annotated[str, typer.Option(help="of a model: its submodel, method:level[,key=value]")] = "",
    allow_env: Annotated[list[str] | None, typer.Option(metavar="NAME", help=ENV_HELP)] = None,
    fix: Annotated[bool, typer.Option("--fix", help="install what is missing and can be installed with pip")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Look for what would stop a run before it starts; the exit status is the one the run would end with.

    Of a model: a table of its layers against the runtimes; the exit status is 1 when no runtime trains it whole.
    """
    report = None
    with waiting("looking at this machine") as doing:
        findings = here_findings()
        if fix:
            doing("installing what is missing")
            findings = [_mended(finding) for finding in findings]
        if subject.endswith(".toml"):
            doing(f"looking at {subject}: its data, model, runtimes and broker")
            findings += config_findings(Path(subject), allow_env or ())
        elif subject:
            from coordinator.cli.model_arguments import parse_shape

            doing(f"looking at the layers of {subject} on every runtime")
            report = report_of(subject, parse_shape(input_shape), classes, freeze, cut)
            findings.append(model_finding(report))
    stream = sys.stderr if as_json else sys.stdout
    if report is not None:
        from coordinator.cli.doctor_table import print_report

        print_report(report, stream)
    for finding in findings:
        if report is None or finding.state == "fail" or finding.name == subject:
            _print_finding(finding, stream)
    failed = [finding for finding in findings if finding.state == "fail"]
    values: dict[str, Any] = {
        "ok": not failed,
        "failed": [finding.name for finding in failed],
        "findings": [finding.as_dict() for finding in findings],
        **({} if report is None else report.as_dict()),
    }
    if failed:
        message = "; ".join(f"{finding.name}: {finding.detail}" for finding in failed)
        values["error"] = {"code": "not-ready", "message": message, "hint": failed[0].fix}
        values["exit_code"] = max(finding.exit_code for finding in failed)
    return values


def _print_finding(finding: Finding, stream: TextIO) -> None:
    mark = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}[finding.state]
    print(f"{mark}  {finding.name}: {finding.detail}", file=stream)
    if finding.needs_fix:
        print(f"      -> {finding.fix}", file=stream)


def here_findings() -> list[Finding]:
    """Of this machine and this installation."""
    from coordinator.cli.page_findings import page_finding

    return [*machine_findings(), *package_findings(), page_finding()]


def report_of(
    model: str, input_shape: tuple[int, ...] = (), classes: int = 0, freeze: int = 0, cut: str = ""
) -> ModelReport:
    """A model's layers against the runtimes; the model's own input and classes unless they are given."""
    from coordinator.cli.doctor_model import model_report
    from coordinator.cli.model_arguments import ModelArguments

    return model_report(ModelArguments(model, input_shape, classes, BATCH, freeze, cut))


def model_finding(report: ModelReport) -> Finding:
    if report.trained_by:
        return Finding(report.model, "ok", f"{', '.join(report.trained_by)} would train it; export proves it")
    refusals = report.refusals()
    first = next(iter(refusals), "no runtime can be asked on this machine")
    more = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
    return Finding(report.model, "fail", f"no runtime trains it: {first}{more}", "change the layers named in the table")


def machine_findings() -> list[Finding]:
    """Python, word size, processors, memory, disk and brokers."""
    bits = 64 if sys.maxsize > 2**32 else 32
    free = memory(SystemFiles()).get("free_ram_bytes")
    free_gb = 0.0 if free is None else free.value / 1e9
    disk = shutil.disk_usage(Path.cwd()).free / 1e9
    mosquitto = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    version_ok = sys.version_info[:2] in PYTHONS
    return [
        Finding(
            "python",
            "ok" if version_ok else "fail",
            f"{platform.python_version()} on {platform.machine()}",
            f"use Python {PYTHON_RANGE}: the training runtimes have no wheels for others",
        ),
        Finding("64-bit", "ok" if bits == 64 else "fail", f"{bits}-bit", "install a 64-bit system"),
        Finding("processors", "ok", f"{os.cpu_count()}"),
        Finding(
            "free memory",
            "ok" if free_gb > 2 else "warn",
            f"{free_gb:.1f} GB",
            "a coordinator with torch needs about 2 GB",
        ),
        Finding("free disk", "ok" if disk > 2 else "warn", f"{disk:.1f} GB", "runs keep weights and updates on disk"),
        Finding(
            "mosquitto",
            "ok" if mosquitto else "warn",
            mosquitto or "not on PATH; the embedded broker is used",
            "install mosquitto 2.0 or later for more than a few hundred devices",
        ),
        Finding(
            "APPORTION_DATA",
            "ok" if os.environ.get("APPORTION_DATA") else "warn",
            os.environ.get("APPORTION_DATA", "not set"),
            "set it to the folder of the packed datasets to run examples on real data",
        ),
    ]


def package_findings() -> list[Finding]:
    """Versions of what the coordinator needs, and of runtimes whose wheels overwrite each other."""
    findings = []
    for package, extra in (("torch", "coordinator"), ("onnx", "coordinator"), ("amqtt", "coordinator")):
        findings.append(_package(package, extra))
    module = traits_of(DEFAULT).module
    alike = [traits.distribution for traits in map(traits_of, RUNTIMES) if traits.module == module]
    if len(here := [f"{package} {version}" for package in alike if (version := _version(package))]) > 1:
        both = f"{' and '.join(here)} are both here and overwrite each other"
        findings.append(Finding(module, "fail", both, "pip uninstall both, then install one of them per environment"))
    else:
        findings.append(_package(traits_of(DEFAULT).distribution, DEFAULT))
    return findings


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _package(package: str, extra: str) -> Finding:
    version = _version(package)
    fix = f"pip install 'apportion[{extra}]'"
    return Finding(package, "ok" if version else "fail", version or "not installed", fix)


def _mended(finding: Finding) -> Finding:
    if finding.state != "fail" or not finding.fix.startswith("pip install 'apportion"):
        return finding
    requirement = finding.fix.removeprefix("pip install ").strip("'")
    done = subprocess.run([sys.executable, "-m", "pip", "install", requirement], stdout=sys.stderr, check=False)
    version = _version(finding.name)
    if done.returncode or version is None:
        return Finding(finding.name, "fail", f"pip install {requirement} ended with {done.returncode}", finding.fix)
    return Finding(finding.name, "ok", f"{version}, just installed")


def config_findings(path: Path, allow_env: Collection[str] = ()) -> list[Finding]:
    """Problems of a run file, one finding each; whether its data opens, its model is built, its broker answers.

    Raises:
        ConfigError: there is no such file.
    """
    from coordinator.run_file.loading import load_config
    from edge.contracts.errors import ConfigError

    if not path.is_file():
        raise parse_problem("CONFIG", f"{path}: no such file; give the path of a run file")
    try:
        config = load_config(path)
    except ConfigError as error:
        return [Finding(str(path), "fail", problem, "mend the run file", 2) for problem in error.problems]
    return findings_of(config, str(path), allow_env)


def findings_of(config: RunConfig, name: str, allow_env: Collection[str] = ()) -> list[Finding]:
    """Whether the data of ``config`` opens, its model is built, its runtimes and broker answer; ``name`` is its own."""
    from coordinator.cli.identity_findings import identity_findings
    from coordinator.cli.masking_findings import masking_findings
    from coordinator.cli.page_findings import page_findings
    from coordinator.cli.runtime_findings import runtime_findings
    from coordinator.cli.tracking_findings import tracking_findings
    from coordinator.exporting.cut_exporter import dense_module
    from coordinator.exporting.run_data import load_run_data
    from coordinator.run_file.checks import method_of_run

    findings = [Finding(name, "ok", f"federation '{config.federation.name}', {config.federation.rounds} rounds")]
    try:
        dataset = load_run_data(config)
        findings.append(Finding("data", "ok", f"{len(dataset.y_train)} examples, {len(dataset.y_test)} held out"))
    except ApportionError as error:
        findings.append(Finding.failure("data", error))
    try:
        method = method_of_run(config, dense_module(config))
        findings.append(Finding("method", "ok", ", ".join(level.name for level in method.levels())))
    except ApportionError as error:
        findings.append(Finding.failure("method", error))
    # The broker last but one: one that is started here is given a list and certificates that are good, if need be.
    identity = [*identity_findings(config), *masking_findings(config)]
    findings += tracking_findings(config)
    return [*findings, *runtime_findings(config), *identity, broker_finding(config, allow_env), *page_findings(config)]


def broker_finding(config: RunConfig, allow_env: Collection[str] = ()) -> Finding:
    """Whether the broker that a run file names can be started here, or lets us in where it runs."""
    import tempfile

    from coordinator.brokers.opening import open_broker
    from coordinator.local_devices.processes import connection_address
    from edge.contracts import topics
    from edge.transport.mqtt import MqttTransport

    with tempfile.TemporaryDirectory(prefix="apportion-doctor-") as folder:
        try:
            check_variable(config, allow_env)
            with open_broker(config.broker, Path(folder), federation=config.federation.name) as address:
                connection, name = connection_address(address), config.federation.name
                transport = MqttTransport(
                    connection,
                    client_id=connection.client_id(f"@{name}", f"{name}-doctor"),
                    subscriptions=(topics.coordinator_filter(config.federation.name),),
                    connect_timeout_s=BROKER_TIMEOUT_S,
                )
                transport.start(lambda event: None)
                transport.stop()
        except ApportionError as error:
            return Finding.failure("broker", error)
    return Finding("broker", "ok", f"{address.url if address.kind == 'external' else address.kind} lets us in")
