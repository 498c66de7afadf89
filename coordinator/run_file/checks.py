"""What of a run cannot go together with its method, its defences, its privacy or its shards; told before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.aggregation import AGGREGATIONS
from coordinator.aggregation.choice import rule_class
from coordinator.config.parameter_groups import check_group_names
from coordinator.config.personal import PersonalConfig
from coordinator.config.run_config import RunConfig
from coordinator.methods import METHODS, build_method, method_class
from coordinator.methods.own import is_import_path
from coordinator.privacy.guarantee import guarantee_of
from coordinator.privacy.one_cut import refusal_of, summable_methods
from coordinator.run_file.cached_features import check_frozen_layers
from coordinator.run_file.clusters import check_cluster_names, clusters_refused_by
from edge.contracts.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from coordinator.config.run_config import RunConfig
    from coordinator.methods.method import Method


def method_of_run(config: RunConfig, module: nn.Module) -> Method:
    """The method of ``config`` for its dense ``module``, and nothing that it cannot be combined with.

    A method that the file names by its path is imported here, and not before: reading a file runs no code.

    Raises:
        ConfigError: as :func:`coordinator.methods.build_method`, or what the method's class refuses.
    """
    problems: list[str] = []
    if is_import_path(config.method.name):
        method_class(config.method.name)
        check_method(config, problems)
    if config.personal.layers:
        check_personal_names(config, module, problems)
    if config.clusters.layers:
        check_cluster_names(config, module, problems)
    if config.training.groups:
        parameters, buffers = (
            [name for name, _ in named()] for named in (module.named_parameters, module.named_buffers)
        )
        check_group_names(config.training.groups, parameters, buffers, problems)
    if problems:
        raise ConfigError(problems)
    method = build_method(config.method.name, module, config.method.options)
    check_frozen_layers(config, module, method, problems)
    if problems:
        raise ConfigError(problems)
    return method


def check_task(config: RunConfig, problems: list[str]) -> None:
    """Add what a task cannot be combined with to ``problems``."""
    task = config.task.name
    if not task:
        if config.federation.metric not in ("accuracy", "loss"):
            problems.append(
                f"$.federation.metric: '{config.federation.metric}' is no metric of classification; accuracy or loss"
            )
        return
    if config.training.loss != "cross_entropy":
        problems.append(f"$.training.loss: task '{task}' has its own loss; leave the key out")
    is_known = config.method.name in METHODS
    if is_known and hasattr(method_class(config.method.name), "without_distillation"):
        problems.append(f"$.method.name: {config.method.name} distils logits, which task '{task}' has none of")


def check_method(config: RunConfig, problems: list[str]) -> None:
    """Add what the class of the run's method refuses to ``problems``; nothing of a method that is unknown."""
    name, privacy = config.method.name, config.privacy
    rule = config.aggregation.rule
    try:
        method_class(name)
    except ConfigError:  # which is a problem of its own
        return
    if rule in AGGREGATIONS and (reason := rules_refused_by(name)):
        problems.append(f"$.aggregation.rule: method {name} {reason}; use mean")
    if config.server_optimizer.name and (reason := server_optimizers_refused_by(name)):
        problems.append(f"$.server-optimizer.name: method {name}: {reason}; leave $.server-optimizer out")
    if config.personal.layers and (reason := personal_layers_refused_by(name)):
        problems.append(f"$.personal.layers: method {name}: {reason}; leave $.personal out")
    if config.clusters.layers and (reason := clusters_refused_by(name)):
        problems.append(f"$.clusters: method {name}: {reason}; leave $.clusters out")
    if config.training.scaffold and (reason := personal_layers_refused_by(name)):
        problems.append(f"$.training.scaffold: method {name}: {reason}; leave it out")
    asked = ["secure-aggregation"] * privacy.secure_aggregation
    asked += ["noise-multiplier"] * bool(privacy.clip_norm and privacy.noise_multiplier)
    for key in asked:
        if reason := refusal_of(name):
            methods = ", ".join(summable_methods())
            problems.append(f"$.privacy.{key}: method '{name}': {reason}; use one of {methods}")


def check_defences(config: RunConfig, problems: list[str]) -> None:
    """Adds to ``problems`` what the rule and the screening of ``config`` cannot be combined with."""
    aggregation, cohort = config.aggregation, config.cohort
    rule = aggregation.rule
    if config.privacy.secure_aggregation and config.defences.quarantine_factor:
        problems.append(
            "$.defences.quarantine-factor: norms of single updates are what $.privacy.secure-aggregation hides; leave "
            "one of the two out"
        )
    if aggregation.mode == "buffered" and config.defences.quarantine_factor:
        problems.append(
            "$.defences.quarantine-factor: compares the updates of one round, and buffered ones come of several; use "
            '$.aggregation.rule = "norm_clip" or "median", or mode = "synchronous"'
        )
    if rule not in AGGREGATIONS:  # the mean; an unknown rule is a problem of its own
        return
    if config.privacy.secure_aggregation:
        problems.append(
            f"$.aggregation.rule: {rule} needs every device's values, and with $.privacy.secure-aggregation the "
            "coordinator sees their sum alone; use mean, or leave out secure-aggregation"
        )
    if aggregation.mode == "buffered" and rule_class(rule).compares_models:
        problems.append(
            f"$.aggregation.rule: {rule} compares updates of one model, and buffered ones started from several; use "
            "median, trimmed_mean or norm_clip"
        )
    key, counted = "$.cohort.min-reports", cohort.min_reports
    if aggregation.mode == "buffered" and aggregation.buffer:
        key, counted = "$.aggregation.buffer", aggregation.buffer
    least = rule_class(rule).least_updates(aggregation.trim)
    if counted < least:
        problems.append(
            f"$.aggregation.rule: {rule} needs {least} updates or more to leave one hostile device without a say, with "
            f"trim {aggregation.trim:g}, and {key} is {counted}; raise it, or use another rule"
        )


def personal_layers_refused_by(method: str) -> str:
    """Why devices of ``method`` cannot keep a layer, or a control variate, for themselves, as a clause; empty where
    they can.

    What is one's own has to mean the same in every round: the same part of the model, beside the same body.
    """
    of = method_class(method)
    return str(getattr(of, "refuses_personal_layers", "")) or of.synchronous_only or of.needs_each_update


def check_personal(config: RunConfig, problems: list[str]) -> None:
    """Add what does not go together with personal layers to ``problems``, each with its path."""
    if not config.personal.layers:
        return
    where, privacy = "$.personal.layers", config.privacy
    for key, is_on in (("secure-aggregation", privacy.secure_aggregation), ("clip-norm", privacy.clip_norm > 0)):
        if is_on:
            problems.append(f"{where}: $.privacy.{key} counts every trained tensor as sent; leave one of them out")
    if config.store.shards > 1:
        problems.append(f"{where}: is not asked of the devices of several coordinators; use one shard")


def check_device_scores(config: RunConfig, problems: list[str]) -> None:
    """Add what does not go together with scores on the devices to ``problems``, each with its path."""
    where, privacy, tuned = "$.evaluation.devices", config.privacy, config.personal.fine_tune
    if tuned and not config.evaluation.devices:
        problems.append(
            f"$.personal.fine-tune: {tuned} steps, and a device keeps them only where its own held-out share says that "
            "they help; give $.evaluation.devices, such as 0.2"
        )
    if not config.evaluation.devices:
        return
    if privacy.secure_aggregation:
        problems.append(
            f"{where}: every device's sums are told by themselves, which $.privacy.secure-aggregation is there to "
            "avoid; leave one of them out"
        )
    if privacy.noise_multiplier:
        problems.append(
            f"{where}: its sums are told without noise, and $.privacy.noise-multiplier's epsilon would not hold for "
            "them; leave one of them out"
        )


def check_personal_names(config: RunConfig, module: nn.Module, problems: list[str]) -> None:
    """Check that each pattern names tensors of ``module``, and that some parameter is left to learn together."""
    parameters = [name for name, _ in module.named_parameters()]
    names = [*parameters, *(name for name, _ in module.named_buffers())]
    for index, pattern in enumerate(config.personal.layers):
        if not PersonalConfig(layers=(pattern,)).of(names):
            known = ", ".join(names[-6:])
            problems.append(f"$.personal.layers[{index}]: no tensor is named '{pattern}'; the last ones are {known}")
    if len(config.personal.of(parameters)) == len(parameters):
        problems.append("$.personal.layers: name every parameter, and nothing is left to learn together; name fewer")


def server_optimizers_refused_by(method: str) -> str:
    """Why the aggregate of ``method`` is no step that a server optimizer could take, as a clause; empty where it is.

    A class says so in ``refuses_server_optimizer``; where it does not, what cannot be added to a later state is none.
    """
    of = method_class(method)
    return str(getattr(of, "refuses_server_optimizer", of.synchronous_only))


def rules_refused_by(method: str) -> str:
    """Why ``method`` takes no rule but the mean, as a clause; empty when it does."""
    return str(getattr(method_class(method), "refuses_rules", ""))


def check_privacy(config: RunConfig, problems: list[str]) -> None:
    """Add what of the run cannot go together with its ``[privacy]`` to ``problems``, each with its path."""
    privacy = config.privacy
    if privacy.secure_aggregation:
        _check_masking(config, problems)
    if not privacy.clip_norm:
        return
    if config.aggregation.mode != "synchronous":
        problems.append(
            "$.privacy.clip-norm: bounds differences to one round's weights, and buffered updates come of several; "
            'use mode = "synchronous"'
        )
    if privacy.noise_multiplier:
        _check_noise(config, problems)


def _check_masking(config: RunConfig, problems: list[str]) -> None:
    where, sees = "$.privacy.secure-aggregation", "the coordinator sees the sum alone"
    if config.method.options.get("weight-by-examples") is False:
        problems.append(f"{where}: a masked sum is weighted by examples; leave out $.method.weight-by-examples")
    if config.aggregation.rule != "mean":
        problems.append(
            f"{where}: {sees}, $.aggregation.rule '{config.aggregation.rule}' needs each update; use 'mean'"
        )
    if config.aggregation.mode != "synchronous":
        problems.append(f'{where}: masks cancel among the devices of one round; use mode = "synchronous"')
    if config.defences.quarantine_factor:
        problems.append(f"{where}: {sees}, $.defences.quarantine-factor judges each update; leave one of them out")
    if config.defences.examples_factor:
        problems.append(f"{where}: {sees}, $.defences.examples-factor weighs each update; leave one of them out")
    if config.updates.precision != "fp32":
        problems.append(f"{where}: masked values are whole numbers of 32 bits; leave out $.updates.precision")
    if config.cohort.size < 3:
        problems.append(f"{where}: of {config.cohort.size} devices each could tell the others' sum; $.cohort.size >= 3")
    guarantee = guarantee_of(config.privacy, config.cohort.size)
    if config.privacy.least_honest and guarantee.missing < 0:
        problems.append(
            f"$.privacy.least-honest: {guarantee.honest} beside {guarantee.threshold - 1} devices that may collude are "
            f"{guarantee.reports} in a sum, and $.cohort.size is {config.cohort.size}; raise it, or lower least-honest "
            "or recovery-share"
        )


def _check_noise(config: RunConfig, problems: list[str]) -> None:
    where = "$.privacy.noise-multiplier"
    if config.aggregation.rule != "mean":
        problems.append(
            f"{where}: is measured for a mean, and $.aggregation.rule is '{config.aggregation.rule}'; use 'mean'"
        )
    if config.defences.quarantine_factor:
        problems.append(
            f"{where}: leaving updates out by their norms makes one device's update decide over another's; leave out "
            "$.defences.quarantine-factor, clip-norm bounds every update already"
        )


MOST_SHARDS = 64
"""A shard is a connection to the broker, one to the ledger and three threads of whoever holds it."""


def check_shards(config: RunConfig, problems: list[str]) -> None:
    """Add what does not go together with several ``[store] shards`` to ``problems``, each with its path."""
    if config.store.shards == 1:
        return
    where = f"with $.store.shards = {config.store.shards}"
    store, broker = config.store, config.broker
    if not store.ledger:
        problems.append(
            f'$.store.ledger: is missing, and {where} leases are rows of it; give "postgresql://user@host/database"'
        )
    if not store.dir or store.blobs:
        problems.append(
            f"$.store.{'blobs' if store.blobs else 'dir'}: {where} one process stores an update and another one reads "
            "it at once; give store.dir alone, a folder that all of them mount"
        )
    if store.quota_mb:
        problems.append(
            f"$.store.quota-mb: {store.quota_mb:g} is counted by one process, and {where} several write; leave it out "
            "and limit the folder itself"
        )
    if broker.url in ("embedded", "mosquitto"):
        problems.append(
            f"$.broker.url: '{broker.url}' ends with the process that began the run, and {where} all of them need it; "
            "give mqtt[s]://host of a broker that runs by itself"
        )
    for key in ("bulk", "web", "web_socket"):
        if value := getattr(broker, key):
            problems.append(f"$.broker.{key.replace('_', '-')}: '{value}' {_ONE_PROCESS[key]} {where}; leave it out")
    if config.cohort.local:
        problems.append(
            f"$.cohort.local: {config.cohort.local_devices} agents would end with whoever starts them; {where} "
            "start them by themselves: apportion agent"
        )
    if config.aggregation.mode != "synchronous":
        problems.append(
            f"$.aggregation.mode: '{config.aggregation.mode}' hands out work one device at a time, which is not done "
            f'{where}; use mode = "synchronous" or one shard'
        )
    if config.privacy.secure_aggregation:
        problems.append(
            "$.privacy.secure-aggregation: keys and shares go between all devices of a round, which one process has to "
            f"hear; it is not done {where}; leave it out or use one shard"
        )


_ONE_PROCESS = {
    "bulk": "is the address of one process and cannot be that of every shard's",
    "web": "is the page of one process, which would not hear every browser",
    "web_socket": "is for browsers, whose page is of one process",
}
