"""What of a run cannot go together with clusters of devices (``[clusters]``), told before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.config.clusters import ClustersConfig
from coordinator.config.run_config import RunConfig
from coordinator.methods import method_class

if TYPE_CHECKING:
    from torch import nn


def clusters_refused_by(method: str) -> str:
    """Why ``method`` has no layers that differ by cluster, as a clause; empty where it may.

    The next value of each entry has to be the mean of the devices that hold it: then it can be that of a cluster's.
    """
    of = method_class(method)
    masks = str(getattr(of, "refuses_personal_layers", ""))
    return masks or str(getattr(of, "refuses_server_optimizer", of.synchronous_only))


def check_clusters(config: RunConfig, problems: list[str]) -> None:
    """Add what does not go together with clusters and tags to ``problems``, each with its path."""
    has = {tag for group in config.cohort.local for tag in group.tags}
    if config.cohort.tags and config.cohort.local and not has & set(config.cohort.tags):
        tags = ", ".join(config.cohort.tags)
        problems.append(f"$.cohort.tags: no [[cohort.local]] group has one of {tags}; give it tags")
    if not config.clusters.layers:
        return
    for tag in config.clusters.tags if config.cohort.local else ():
        if tag not in has:
            problems.append(f"$.clusters.tags: no [[cohort.local]] group has the tag '{tag}'; give it tags")
    problems += [f"$.clusters: {reason}" for is_so, reason in _refusals(config) if is_so]


def _refusals(config: RunConfig) -> list[tuple[bool, str]]:
    privacy = config.privacy
    return [
        (
            config.aggregation.mode != "synchronous",
            f'$.aggregation.mode = "{config.aggregation.mode}" moves updates to the model of today, of which there are '
            'several; use "synchronous"',
        ),
        (
            config.aggregation.rule != "mean",
            f"$.aggregation.rule '{config.aggregation.rule}' needs so many devices in each cluster, and which are in a "
            "round is drawn; use mean",
        ),
        (
            bool(config.server_optimizer.name),
            "$.server-optimizer steps from one model, and clusters have several; leave one of them out",
        ),
        (
            bool(config.personal.layers),
            "$.personal.layers are of one device each; name a layer's owner once, and leave one of them out",
        ),
        (
            config.training.scaffold,
            "$.training.scaffold corrects towards one model, and clusters have several; leave one of them out",
        ),
        (
            privacy.secure_aggregation,
            "$.privacy.secure-aggregation gives one sum over all devices; leave one of them out",
        ),
        (privacy.clip_norm > 0, "$.privacy.clip-norm measures what one sum tells, and here are more; leave one out"),
        (
            config.store.shards > 1,
            f"are not told to several coordinators, and $.store.shards is {config.store.shards}; use 1",
        ),
    ]


def check_cluster_names(config: RunConfig, module: nn.Module, problems: list[str]) -> None:
    """Check that each pattern names tensors of ``module``, and that their statistics can be the clusters' own."""
    names = [name for name, _ in module.named_parameters()] + [name for name, _ in module.named_buffers()]
    for index, pattern in enumerate(config.clusters.layers):
        if not ClustersConfig(layers=(pattern,)).own(names):
            known = ", ".join(names[-6:])
            problems.append(f"$.clusters.layers[{index}]: no tensor is named '{pattern}'; the last ones are {known}")
    if config.evaluation.norm == "static" and any(name.endswith("running_mean") for name in names):
        problems.append(
            '$.clusters: $.evaluation.norm = "static" gathers the statistics of batch norms for one model, and there '
            'are several; use "running" or "batch"'
        )
