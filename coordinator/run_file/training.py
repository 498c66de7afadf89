"""``[training]`` of the run file: each key, and those that belong together."""

from __future__ import annotations

from typing import get_args

from coordinator.config.parameter_groups import read_groups
from coordinator.config.table_reader import TableReader, choices_of
from coordinator.config.training import TrainingConfig
from edge.contracts.plan import LastBatch
from export.training_step import Loss, Optimizer


def read_training(table: TableReader) -> TrainingConfig:
    """The table's training; problems go to the table."""
    default = TrainingConfig()
    if table.has("epochs") and table.has("steps"):
        table.problem("steps", "give epochs or steps, not both")
    steps = table.integer("steps", 0, low=1)
    epochs = table.integer("epochs", 0 if steps else 1, low=1)
    optimizer = table.choice("optimizer", choices_of(Optimizer, "kind"), default.optimizer)
    training = TrainingConfig(
        epochs=0 if steps else epochs,
        steps=steps,
        batch=table.integer("batch", default.batch, low=1, high=65_536),
        last_batch=table.choice("last-batch", get_args(LastBatch), default.last_batch),
        optimizer=optimizer,
        lr=table.number("lr", default.lr, low=0.0, above_low=True),
        lr_schedule=table.choice("lr-schedule", choices_of(TrainingConfig, "lr_schedule"), default.lr_schedule),
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
        frozen_norm=table.choice("frozen-norm", choices_of(TrainingConfig, "frozen_norm"), default.frozen_norm),
        cached_features=table.choice(
            "cached-features", choices_of(TrainingConfig, "cached_features"), default.cached_features
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
