"""``[training]`` of the run file; rules across its keys are :mod:`coordinator.run_file`'s."""

from __future__ import annotations

from typing import Literal

import msgspec

from coordinator.config.parameter_groups import ParameterGroupConfig
from edge.contracts.plan import LastBatch


class TrainingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[training]``: what a device does in one round.

    Attributes:
        epochs: passes over a device's examples in one round; 1 when neither this nor ``steps`` is given. Example:
            ``3``.
        steps: training steps in one round, in place of ``epochs``. Example: ``20``.
        batch: examples in one training step. Example: ``32``.
        last_batch: what becomes of the examples left over at an epoch's end: ``drop`` leaves them out, ``keep`` trains
            a smaller batch, ``wrap`` fills the batch up from the epoch's beginning. Example: ``"wrap"``.
        optimizer: what the device's steps are made with. Example: ``"adamw"``.
        lr: learning rate of the device's optimizer, at the start. Example: ``0.05``.
        lr_schedule: how the learning rate changes over the rounds: ``constant``; ``cosine`` from ``lr`` to
            ``lr_final``; ``steps``, times ``lr_factor`` at each round of ``lr_milestones``; ``exponential``, halved
            every ``lr_half_life`` rounds. Example: ``"cosine"``.
        lr_final: learning rate at the end of ``cosine``. Example: ``0.001``.
        lr_milestones: rounds at which ``steps`` changes the rate. Example: ``[50, 75]``.
        lr_factor: what ``steps`` multiplies the rate with at each of them. Example: ``0.1``.
        lr_half_life: rounds after which ``exponential`` has halved the rate. Example: ``100``.
        lr_warm_up: first rounds, W, of a rising rate: round r, from 0, has (r + 1) / (W + 1) of what the schedule says.
            Example: ``3``.
        momentum: momentum of ``sgd``. Example: ``0.9``.
        nesterov: Nesterov's form of that momentum. Example: ``true``.
        weight_decay: this times the weights is added to the gradient (``sgd``, ``adam``) or taken off the weights
            (``adamw``, times ``lr``). Example: ``0.0005``.
        clip_norm: largest gradient norm; 0 = no clipping. Example: ``1.0``.
        frobenius_lambda: weight of Frobenius decay on factor pairs, for methods that have them. Example: ``0.0001``.
        proximal_mu: mu of FedProx: every step is also pulled back to the received weights; 0 = not. Example: ``0.01``.
        scaffold: control variates correct every step for how a device's data differ from all devices' (SCAFFOLD).
            Example: ``true``.
        loss: what a step lowers where there is no ``[task]``. Example: ``"cross_entropy"``.
        frozen_norm: what a batch norm whose parameters are frozen normalises with: the statistics of each ``batch``, or
            the ``static`` ones it has learned. Example: ``"static"``.
        cached_features: where a cut freezes the lowest layers, devices run these once per example and keep what they
            give on disk, in this type: ``float32`` (nothing is lost), ``float16``, half the bytes, or
            ``int8``, a quarter; empty = not. Example: ``"float32"``.
        groups: ``[[training.groups]]``, parameters with a learning rate or a weight decay of their own. Example: ``[{
            match = "head.*", lr-factor = 10.0 }]``.
    """

    epochs: int = 1
    steps: int = 0
    batch: int = 32
    last_batch: LastBatch = "drop"
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.1
    lr_schedule: Literal["constant", "cosine", "steps", "exponential"] = "constant"
    lr_final: float = 0.0
    lr_milestones: tuple[int, ...] = ()
    lr_factor: float = 0.1
    lr_half_life: float = 10_000.0
    lr_warm_up: int = 0
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    frobenius_lambda: float = 0.0
    proximal_mu: float = 0.0
    scaffold: bool = False
    loss: str = "cross_entropy"
    frozen_norm: Literal["batch", "static"] = "batch"
    cached_features: Literal["", "float32", "float16", "int8"] = ""
    groups: tuple[ParameterGroupConfig, ...] = ()
