"""What of a run cannot go together with control variates (``[training] scaffold``), told before it starts."""

from __future__ import annotations

from coordinator.config.run_config import RunConfig

_WHERE = "$.training.scaffold"
_MEAN = "a device's variate is the mean of its gradients, told from how far it went, and "


def check_control_variates(config: RunConfig, problems: list[str]) -> None:
    """Add what does not go together with them to ``problems``, each with its path.

    What of methods does not is told with the method, :func:`coordinator.run_file.checks.check_method`.
    """
    if config.training.scaffold:
        problems += [f"{_WHERE}: {reason}" for is_so, reason in _refusals(config) if is_so]


def _refusals(config: RunConfig) -> list[tuple[bool, str]]:
    training, aggregation, privacy = config.training, config.aggregation, config.privacy
    return [
        (training.optimizer != "sgd", f"{_MEAN}{training.optimizer} takes other steps than the gradient; use sgd"),
        (training.momentum > 0, f"{_MEAN}$.training.momentum makes a step of many gradients; leave it out"),
        (training.clip_norm > 0, f"{_MEAN}$.training.clip-norm shortens steps; leave it out"),
        (training.proximal_mu > 0, f"{_MEAN}$.training.proximal-mu would be taken for one; use one of the two"),
        (
            any(group.lr_factor != 1 for group in training.groups),
            f"{_MEAN}a factor of $.training.groups takes some further; leave lr-factor out",
        ),
        (
            aggregation.mode != "synchronous",
            f'$.aggregation.mode = "{aggregation.mode}" counts updates of several models, and a variate belongs to '
            'one; use "synchronous"',
        ),
        (
            aggregation.rule != "mean",
            f"$.aggregation.rule '{aggregation.rule}' would guard the model and not the variate; use mean",
        ),
        (
            privacy.secure_aggregation,
            "$.privacy.secure-aggregation hides the updates that variates are told from; leave one of them out",
        ),
        (
            privacy.clip_norm > 0,
            "$.privacy.clip-norm bounds what a device says, and its variate would say it twice; leave one of them out",
        ),
        (
            config.updates.precision != "fp32",
            f"$.updates.precision '{config.updates.precision}' rounds what variates are told from; use fp32",
        ),
        (
            bool(config.personal.layers),
            "$.personal.layers are not aggregated, and a variate corrects towards the aggregate; leave one of them out",
        ),
        (
            config.personal.fine_tune > 0,
            "$.personal.fine-tune is for a device's own data, and a correction holds it to all devices'; leave one out",
        ),
        (
            config.store.shards > 1,
            f"is not asked of the devices of several coordinators, and $.store.shards is {config.store.shards}; use 1",
        ),
    ]
