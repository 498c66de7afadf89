"""From the text of a run file to a checked :class:`~coordinator.config.run_config.RunConfig`, all problems at once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.aggregation import AGGREGATIONS
from coordinator.config.aggregation import read_aggregation, read_defences, read_updates
from coordinator.config.broker import read_broker
from coordinator.config.clusters import read_clusters
from coordinator.config.cohort import PlannerConfig, RuntimeConfig, read_cohort
from coordinator.config.device_speed import SPEEDS
from coordinator.config.personal import read_personal
from coordinator.config.privacy import read_privacy
from coordinator.config.run_config import (
    TORCH,
    DataConfig,
    EvaluationConfig,
    FederationConfig,
    MethodConfig,
    RunConfig,
    SimulationConfig,
    StoreConfig,
)
from coordinator.config.server_optimizer import read_server_optimizer
from coordinator.config.store import has_password, has_unsafe_option, url_problem
from coordinator.config.table_reader import TableReader, absolute, choices_of
from coordinator.config.task import read_task
from coordinator.config.tracking import read_tracking
from coordinator.methods import LANGUAGE_METHODS, METHODS, method_class
from coordinator.methods.own import installed_methods, is_import_path
from coordinator.run_file.cached_features import check_cached_features
from coordinator.run_file.checks import (
    MOST_SHARDS,
    check_defences,
    check_device_scores,
    check_method,
    check_personal,
    check_privacy,
    check_shards,
    check_task,
)
from coordinator.run_file.clusters import check_clusters
from coordinator.run_file.control_variates import check_control_variates
from coordinator.run_file.extends import read_document
from coordinator.run_file.language import check_language
from coordinator.run_file.model import read_model
from coordinator.run_file.training import read_training
from coordinator.server_optimizers import SERVER_OPTIMIZERS
from coordinator.tracking import TRACKERS
from edge.contracts.augmentation import augmentation
from edge.contracts.errors import ConfigError, MessageRejected
from edge.contracts.evaluation import FEWEST
from edge.contracts.topics import check_name
from edge.runtimes import RUNTIMES

DATA_VARIABLE = "APPORTION_DATA"
_SECTIONS = tuple(RunConfig.__struct_fields__)


def load_config(path: Path, *, environ: Mapping[str, str] = os.environ) -> RunConfig:
    """The run file at ``path``; relative paths in it are relative to its folder.

    Raises:
        ConfigError: no such file, not TOML, or any number of problems, all of them listed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError([f"{path}: no such file"], hint="give the path of a run file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: cannot be read ({error})"]) from error
    return load_config_text(text, folder=path.resolve().parent, environ=environ)


def load_config_text(text: str, *, folder: Path | None = None, environ: Mapping[str, str] = os.environ) -> RunConfig:
    """The configuration in ``text``; relative paths in it are relative to ``folder``, the current one when None.

    Raises:
        ConfigError: not TOML, or any number of problems, all of them listed with their paths.
    """
    folder = folder or Path.cwd()
    return read_config(read_document(text, folder), folder=folder, environ=environ)


def read_config(document: Mapping[str, Any], *, folder: Path, environ: Mapping[str, str] = os.environ) -> RunConfig:
    """The configuration in the tables of ``document``; relative paths in it are relative to ``folder``.

    Raises:
        ConfigError: any number of problems, all of them listed with their paths.
    """
    problems: list[str] = []
    root = TableReader(document, "$", problems)
    tables = {name: root.table(name.replace("_", "-")) for name in _SECTIONS}
    root.finish()
    runtime = _runtime(tables["runtime"], folder)
    cohort, local = read_cohort(tables["cohort"], runtime)
    task = read_task(tables["task"])
    config = RunConfig(
        federation=_federation(tables["federation"]),
        model=read_model(tables["model"], folder, has_task=bool(task.name)),
        method=_method(tables["method"], folder),
        task=task,
        data=_data(tables["data"], local, folder, environ, has_held_out=bool(tables["evaluation"].raw("data"))),
        cohort=cohort,
        training=read_training(tables["training"]),
        evaluation=_evaluation(tables["evaluation"], folder),
        aggregation=read_aggregation(tables["aggregation"], AGGREGATIONS),
        personal=read_personal(tables["personal"]),
        clusters=read_clusters(tables["clusters"]),
        server_optimizer=read_server_optimizer(tables["server_optimizer"], SERVER_OPTIMIZERS),
        defences=read_defences(tables["defences"]),
        privacy=read_privacy(tables["privacy"]),
        updates=read_updates(tables["updates"]),
        planner=_planner(tables["planner"], folder),
        runtime=runtime,
        broker=read_broker(tables["broker"], folder),
        store=_store(tables["store"], folder),
        simulation=_simulation(tables["simulation"]),
        tracking=read_tracking(tables["tracking"], TRACKERS, folder),
    )
    for name in _SECTIONS:
        tables[name].finish()
    if not is_import_path(config.method.name):  # which is imported when it is built
        check_method(config, problems)
    if config.federation.patience and not config.evaluation.every:
        problems.append("$.federation.patience: counts evaluations, and $.evaluation.every = 0 makes none; raise that")
    if config.training.lr_warm_up >= config.federation.rounds:
        rounds = config.federation.rounds
        problems.append(
            f"$.training.lr-warm-up: {config.training.lr_warm_up} leaves none of {rounds} rounds; give fewer"
        )
    check_personal(config, problems)
    check_device_scores(config, problems)
    check_task(config, problems)
    check_language(config, problems)
    check_cached_features(config, problems)
    check_control_variates(config, problems)
    check_clusters(config, problems)
    check_privacy(config, problems)
    check_defences(config, problems)
    check_shards(config, problems)
    if problems:
        raise ConfigError(problems)
    return config


def _federation(table: TableReader) -> FederationConfig:
    name = table.text("name")
    if name:
        try:
            check_name(name, what="federation")
        except MessageRejected as error:
            table.problem("name", str(error))
    default = FederationConfig(name="", rounds=1)
    patience = table.integer("patience", default.patience, low=1, high=1_000_000)
    federation = FederationConfig(
        name=name,
        seed=table.integer("seed", 0, low=0, high=2**63 - 1),
        rounds=table.integer("rounds", low=1, high=1_000_000),
        patience=patience,
        metric=table.text("metric", default.metric),  # checked with the task at hand
        keep_best=table.flag("keep-best", patience > 0),
        keep_every=table.integer("keep-every", default.keep_every, low=1, high=1_000_000),
    )
    if patience and not federation.keep_best:
        table.problem("keep-best", "is false, and with patience the best model is what is wanted; leave it out")
    if table.has("metric") and not federation.keep_best:
        table.problem("metric", "says which model is the best; give patience or keep-best = true, too")
    return federation


def _method(table: TableReader, folder: Path) -> MethodConfig:
    given = table.raw("name")
    ours = sorted({*METHODS, *LANGUAGE_METHODS})
    known = ours if given in ours else [*ours, *installed_methods()]
    name, options = table.choice("name", known, own="Class"), table.rest()
    paths: tuple[str, ...] = ()
    if name in known:  # a class that the run file names is imported when it is built
        with contextlib.suppress(ConfigError):  # an installed class that is no method: a problem of its own
            paths = getattr(method_class(name), "path_options", ())
    for key, value in options.items():
        if key.replace("_", "-") in paths and isinstance(value, str):
            options[key] = absolute(value, folder)
    return MethodConfig(name=name, options=options)


def _data(
    table: TableReader, local: int, folder: Path, environ: Mapping[str, str], *, has_held_out: bool
) -> DataConfig:
    from coordinator.data.datasets import SOURCES

    default = DataConfig(source="")
    # Devices that are not started here bring their own examples.
    is_needed = bool(table.raw("source")) or not has_held_out or local > 0
    source = table.choice("source", SOURCES, own="function") if is_needed else ""
    data = DataConfig(
        source=source,
        path=_data_path(table, source, folder, environ),
        partition=table.choice("partition", choices_of(DataConfig, "partition"), default.partition),
        alpha=table.number("alpha", default.alpha, low=0.0, above_low=True),
        devices=table.integer("devices", local, low=1, high=1_000_000),
        scale=table.number("scale", default.scale, low=-1e12),
        mean=table.list_of("mean", float, "numbers", default.mean),
        std=table.list_of("std", float, "numbers", default.std),
        augment=table.list_of("augment", str, "names", default.augment),
    )
    try:
        augmentation(data.augment)
    except ValueError as error:
        table.problem("augment", str(error))
    if table.has("alpha") and not data.partition.startswith("dirichlet"):
        table.problem("alpha", 'belongs to partition = "dirichlet" and its variants')
    if data.devices < local:
        table.problem("devices", f"{data.devices} parts for {local} local devices; at least one each is needed")
    if not data.mean or not data.std or any(value <= 0 for value in data.std):
        table.problem("std", f"mean {list(data.mean)} and std {list(data.std)}: one or more values, std above 0")
    return data


def _data_path(table: TableReader, source: str, folder: Path, environ: Mapping[str, str]) -> str:
    given = table.text("path", "")
    from coordinator.data.datasets import SOURCES

    needed = source in SOURCES and SOURCES[source].needs_folder
    if not given and needed:
        given = environ.get(DATA_VARIABLE, "")
        if not given:
            table.problem("path", f"source '{source}' needs a folder; set it here or in {DATA_VARIABLE}")
    path = absolute(given, folder)
    if path and needed and not Path(path).is_dir():
        table.problem("path", f"{path} is not a folder; set it here or in {DATA_VARIABLE}")
    return path


def _evaluation(table: TableReader, folder: Path) -> EvaluationConfig:
    default = EvaluationConfig()
    data = absolute(table.text("data", ""), folder)
    if data and not Path(data).is_dir():
        table.problem("data", f"{data} is not a folder; give one with held-out examples")
    choices = absolute(table.text("choices", ""), folder)
    if choices and not (choices.endswith(".jsonl") and Path(choices).is_file()):
        table.problem("choices", f"{choices} is no .jsonl file; give one question a line: prompt, choices, answer")
    if table.has("devices-least") and not table.has("devices"):
        table.problem("devices-least", "is of the devices' own held-out share; give devices, too")
    return EvaluationConfig(
        batch=table.integer("batch", default.batch, low=1, high=65_536),
        every=table.integer("every", default.every, low=0),
        norm=table.choice("norm", choices_of(EvaluationConfig, "norm"), default.norm),
        holdout=table.number("holdout", default.holdout, low=0.0, high=0.9, above_low=True),
        data=data,
        devices=table.number("devices", default.devices, low=0.0, high=0.5, above_low=True),
        devices_least=table.integer("devices-least", default.devices_least, low=FEWEST, high=1_000_000_000),
        choices=choices,
        precision=table.choice("precision", choices_of(EvaluationConfig, "precision"), default.precision),
    )


def _planner(table: TableReader, folder: Path) -> PlannerConfig:
    default = PlannerConfig()
    return PlannerConfig(
        headroom=table.number("headroom", default.headroom, low=0.0, high=0.9),
        adapt=table.flag("adapt", default.adapt),
        runtimes=table.choice("runtimes", choices_of(PlannerConfig, "runtimes"), default.runtimes),
        micro_batches=table.flag("micro-batches", default.micro_batches),
        recompute=table.flag("recompute", default.recompute),
        float16_activations=table.flag("float16-activations", default.float16_activations),
        max_step_s=table.number("max-step-s", default.max_step_s, low=0.0),
        export_cache=absolute(table.text("export-cache", ""), folder),
        windows=table.list_of("windows", int, "whole numbers", default.windows),
        bases=table.list_of("bases", str, "names of precisions", default.bases),
    )


def _runtime(table: TableReader, folder: Path) -> RuntimeConfig:
    from edge.runtimes import KNOWN

    names = table.choices("name", set(KNOWN), RuntimeConfig().names)
    folders = table.table("environments")
    paths = {name: absolute(folders.text(name, ""), folder) for name in names}
    folders.finish()
    alone = absolute(table.text("environment", ""), folder)
    if alone and (len(names) > 1 or any(paths.values())):
        table.problem("environment", f'is for a single runtime; write environments = {{ {names[0]} = "..." }}')
    elif alone:
        paths[names[0]] = alone
    environments = {name: path for name, path in paths.items() if path}
    return RuntimeConfig(names=names, environments=environments, threads=table.integer("threads", 0, low=0, high=1024))


def _store(table: TableReader, folder: Path) -> StoreConfig:
    default = StoreConfig()
    store = StoreConfig(
        dir=absolute(table.text("dir", ""), folder),
        quota_mb=table.number("quota-mb", default.quota_mb, low=0.0),
        blobs=table.text("blobs", ""),
        ledger=table.text("ledger", ""),
        lease_s=table.number("lease-s", default.lease_s, low=2.0, high=3600.0),
        shards=table.integer("shards", default.shards, low=1, high=MOST_SHARDS),
    )
    if store.blobs and (problem := url_problem(store.blobs)):
        table.problem("blobs", problem)
    if store.ledger and not store.ledger.startswith("postgresql://"):
        scheme = store.ledger.partition("://")[0][:20]
        table.problem("ledger", f"'{scheme}' is not usable; give postgresql://user@host/database, or leave it out")
    elif has_password(store.ledger):
        table.problem("ledger", "leave the password out, every run keeps this text; set PGPASSWORD or write ~/.pgpass")
    elif option := has_unsafe_option(store.ledger):
        table.problem("ledger", f"'{option}' says where a password comes from or goes to; leave it out")
    return store


def _simulation(table: TableReader) -> SimulationConfig:
    default = SimulationConfig()
    return SimulationConfig(
        runtime=table.choice("runtime", (TORCH, *RUNTIMES), default.runtime),
        precision=table.choice("precision", choices_of(SimulationConfig, "precision"), default.precision),
        # Checked with the method and the model at hand: its list lies beside torch.
        time_model=table.text("time-model", default.time_model),
        profile=table.choice("profile", SPEEDS, default.profile),
        gmac_per_s=table.number("gmac-per-s", default.gmac_per_s, low=0.0),
        step_overhead_ms=table.number("step-overhead-ms", default.step_overhead_ms, low=0.0),
        link_mbit=table.number("link-mbit", default.link_mbit, low=0.0),
        latency_ms=table.number("latency-ms", default.latency_ms, low=0.0),
        idle_mb=table.number("idle-mb", default.idle_mb, low=0.0),
    )
