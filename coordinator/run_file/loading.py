"""From the text of a run file to a checked :class:`~coordinator.config.run_config.RunConfig`, all problems at once."""

from __future__ import annotations

import os
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from coordinator.aggregation import AGGREGATIONS
from coordinator.config.aggregation import read_aggregation, read_defences, read_updates
from coordinator.config.broker import read_broker
from coordinator.config.clusters import read_clusters
from coordinator.config.cohort import PlannerConfig, RuntimeConfig, read_cohort
from coordinator.config.device_speed import SPEEDS
from coordinator.config.parameter_groups import read_groups
from coordinator.config.personal import read_personal
from coordinator.config.privacy import read_privacy
from coordinator.config.run_config import (
    DataConfig,
    EvaluationConfig,
    FederationConfig,
    MethodConfig,
    ModelConfig,
    RunConfig,
    SimulationConfig,
    StoreConfig,
)
from coordinator.config.server_optimizer import read_server_optimizer
from coordinator.config.store import has_password, has_unsafe_option, url_problem
from coordinator.config.table_reader import TableReader, absolute
from coordinator.config.task import read_task
from coordinator.config.tracking import read_tracking
from coordinator.config.training import TrainingConfig
from coordinator.language.source import PREFIX, is_language
from coordinator.methods import LANGUAGE_METHODS, METHODS
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
from coordinator.server_optimizers import SERVER_OPTIMIZERS
from coordinator.tracking import TRACKERS
from edge.contracts.errors import ConfigError, MessageRejected
from edge.contracts.evaluation import FEWEST
from edge.contracts.plan import LastBatch
from edge.contracts.topics import check_name
from export.training_step import Loss, Optimizer

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
        model=_model(tables["model"], folder, has_task=bool(task.name)),
        method=_method(tables["method"]),
        task=task,
        data=_data(tables["data"], local, folder, environ, has_held_out=bool(tables["evaluation"].raw("data"))),
        cohort=cohort,
        training=_training(tables["training"]),
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


def _model(table: TableReader, folder: Path, *, has_task: bool) -> ModelConfig:
    from coordinator.models import MODELS
    from coordinator.models.libraries import is_own, library_of
    from coordinator.models.libraries.config_file import with_config_file

    named = str(table.raw("build", ""))
    build = table.text("build") if library_of(named) else table.choice("build", MODELS, own="function")
    shape = table.list_of("input", int, "whole numbers", ())
    if any(size < 1 for size in shape):
        table.problem("input", f"sizes of {list(shape)} must be at least 1")
    least = 1 if has_task else 2  # of a task they are what the model gives: outputs, a vocabulary
    names: tuple[str, ...]
    if isinstance(table.raw("classes"), list):
        names = table.list_of("classes", str, "class names", ())
        if len(set(names)) != len(names) or len(names) < least:
            table.problem(
                "classes",
                f"at least {'two' if least == 2 else 'one'} different names expected, {list(names)[:5]} found",
            )
    elif table.has("classes"):
        names = tuple(str(index) for index in range(table.integer("classes", low=least, high=1_000_000)))
    else:
        names = ()
    if is_own(build) and not shape:
        table.problem("input", "is missing; your own model needs the shape of one example, e.g. [3, 32, 32]")
    if ":" in build and not names and not has_task:
        table.problem("classes", f"is missing; {build} needs a number of classes or their names")
    vocabulary = table.integer("vocabulary", 0, low=1, high=10_000_000)
    if vocabulary and not is_own(build):
        table.problem("vocabulary", f"belongs to a model of your own; {build} says itself what it takes")
    options = table.table("options").rest()
    try:
        build, options = with_config_file(build, options, folder)
    except ConfigError as error:
        table.problems.extend(error.problems)
    if is_language(build) and (folder / build.removeprefix(PREFIX)).is_dir():
        build = PREFIX + absolute(build.removeprefix(PREFIX), folder)
    weights = absolute(table.text("weights", ""), folder)
    if weights and is_language(build):
        table.problem("weights", f'{build} has its values in a base; name their folder: build = "{PREFIX}FOLDER"')
    exceptions = table.list_of("weights-except", str, "name patterns", ())
    if weights and not Path(weights).is_file():
        table.problem("weights", f"{weights}: no such file; give a safetensors file of this model's weights")
    if exceptions and not weights:
        table.problem("weights-except", "belongs to weights, the file they are exceptions from")
    return ModelConfig(
        build=build,
        input=shape,
        vocabulary=vocabulary,
        classes=names,
        options=options,
        weights=weights,
        weights_except=exceptions,
        weights_map=_weights_map(table, weights),
    )


def _weights_map(table: TableReader, weights: str) -> str | dict[str, str]:
    """A name, or patterns and what they become; the file is not opened here."""
    from coordinator.exporting.weight_names import MAPS, pattern_problem

    given = table.raw("weights-map", "")
    if given and not weights:
        table.problem("weights-map", "belongs to weights, the file whose names it maps")
    if isinstance(given, str):
        return str(table.choice("weights-map", MAPS, ""))
    lines = table.table("weights-map").rest()
    for pattern, target in lines.items():
        problem = pattern_problem(pattern, target) if isinstance(target, str) else f"{target!r} is not a name"
        if problem:
            table.problem("weights-map", problem)
    return lines


def _method(table: TableReader) -> MethodConfig:
    given = table.raw("name")
    ours = sorted({*METHODS, *LANGUAGE_METHODS})
    known = ours if given in ours else [*ours, *installed_methods()]
    return MethodConfig(name=table.choice("name", known, own="Class"), options=table.rest())


def _training(table: TableReader) -> TrainingConfig:
    default = TrainingConfig()
    if table.has("epochs") and table.has("steps"):
        table.problem("steps", "give epochs or steps, not both")
    steps = table.integer("steps", 0, low=1)
    epochs = table.integer("epochs", 0 if steps else 1, low=1)
    optimizer = table.choice("optimizer", _choices(Optimizer, "kind"), default.optimizer)
    training = TrainingConfig(
        epochs=0 if steps else epochs,
        steps=steps,
        batch=table.integer("batch", default.batch, low=1, high=65_536),
        last_batch=table.choice("last-batch", get_args(LastBatch), default.last_batch),
        optimizer=optimizer,
        lr=table.number("lr", default.lr, low=0.0, above_low=True),
        lr_schedule=table.choice("lr-schedule", _choices(TrainingConfig, "lr_schedule"), default.lr_schedule),
        lr_final=table.number("lr-final", default.lr_final, low=0.0),
        lr_milestones=table.list_of("lr-milestones", int, "rounds", default.lr_milestones),
        lr_factor=table.number("lr-factor", default.lr_factor, low=0.0, above_low=True),
        lr_half_life=table.number("lr-half-life", default.lr_half_life, low=0.0, above_low=True),
        lr_warm_up=table.integer("lr-warm-up", 0, low=1),
        momentum=table.number("momentum", default.momentum, low=0.0, high=1.0),
        nesterov=table.flag("nesterov", default.nesterov),
        weight_decay=table.number("weight-decay", default.weight_decay, low=0.0),
        clip_norm=table.number("clip-norm", default.clip_norm, low=0.0),
        frobenius_lambda=table.number("frobenius-lambda", default.frobenius_lambda, low=0.0),
        proximal_mu=table.number("proximal-mu", default.proximal_mu, low=0.0, high=1e6),
        scaffold=table.flag("scaffold", default.scaffold),
        loss=table.choice("loss", get_args(Loss), default.loss),
        frozen_norm=table.choice("frozen-norm", _choices(TrainingConfig, "frozen_norm"), default.frozen_norm),
        cached_features=table.choice(
            "cached-features", _choices(TrainingConfig, "cached_features"), default.cached_features
        ),
        groups=read_groups(table),
    )
    if training.optimizer != "sgd" and training.momentum:
        table.problem("momentum", f"belongs to sgd; {training.optimizer} keeps its own moments")
    if training.nesterov and not training.momentum:
        table.problem("nesterov", "needs a momentum above 0")
    if training.lr_final and training.lr_schedule != "cosine":
        table.problem("lr-final", 'belongs to lr-schedule = "cosine"')
    if bool(training.lr_milestones) != (training.lr_schedule == "steps"):
        table.problem("lr-milestones", 'and lr-schedule = "steps" belong together; give both or neither')
    return training


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
        partition=table.choice("partition", _choices(DataConfig, "partition"), default.partition),
        alpha=table.number("alpha", default.alpha, low=0.0, above_low=True),
        devices=table.integer("devices", local, low=1, high=1_000_000),
        scale=table.number("scale", default.scale, low=-1e12),
        mean=table.list_of("mean", float, "numbers", default.mean),
        std=table.list_of("std", float, "numbers", default.std),
        augment=table.list_of("augment", str, "names", default.augment),
    )
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
        norm=table.choice("norm", _choices(EvaluationConfig, "norm"), default.norm),
        holdout=table.number("holdout", default.holdout, low=0.0, high=0.9, above_low=True),
        data=data,
        devices=table.number("devices", default.devices, low=0.0, high=0.5, above_low=True),
        devices_least=table.integer("devices-least", default.devices_least, low=FEWEST, high=1_000_000_000),
        choices=choices,
        precision=table.choice("precision", _choices(EvaluationConfig, "precision"), default.precision),
    )


def _planner(table: TableReader, folder: Path) -> PlannerConfig:
    default = PlannerConfig()
    return PlannerConfig(
        headroom=table.number("headroom", default.headroom, low=0.0, high=0.9),
        adapt=table.flag("adapt", default.adapt),
        runtimes=table.choice("runtimes", _choices(PlannerConfig, "runtimes"), default.runtimes),
        micro_batches=table.flag("micro-batches", default.micro_batches),
        recompute=table.flag("recompute", default.recompute),
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
        precision=table.choice("precision", _choices(SimulationConfig, "precision"), default.precision),
        # Checked with the method and the model at hand: its list lies beside torch.
        time_model=table.text("time-model", default.time_model),
        profile=table.choice("profile", SPEEDS, default.profile),
        gmac_per_s=table.number("gmac-per-s", default.gmac_per_s, low=0.0),
        step_overhead_ms=table.number("step-overhead-ms", default.step_overhead_ms, low=0.0),
        link_mbit=table.number("link-mbit", default.link_mbit, low=0.0),
        latency_ms=table.number("latency-ms", default.latency_ms, low=0.0),
        idle_mb=table.number("idle-mb", default.idle_mb, low=0.0),
    )


def _choices(struct: type, field: str) -> Iterable[str]:
    """The strings that ``field`` may hold, from its type, so that they are written down once."""
    hint: Any = typing.get_type_hints(struct)[field]
    return get_args(hint)
