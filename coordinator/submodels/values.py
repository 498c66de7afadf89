"""What passes between a method and the rest: capacity levels, submodels, updates and the server's state, as values.

They know nothing of devices, brokers or files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from coordinator.submodels.record import Cut
from edge.contracts.errors import PlanError

if TYPE_CHECKING:
    import numpy as np

Tensors = Mapping[str, "np.ndarray"]


@dataclass(frozen=True)
class Level:
    """One rung of a method's capacity ladder.

    Attributes:
        name: as shown to people and stored in the ledger (``rank 1/4``).
        value: the number the paper uses (rank factor f, width ratio s, keep ratio).
        capacity: relative size in (0, 1], the gamma of FedHM's aggregation weights.
    """

    name: str
    value: float
    capacity: float


def require_level(method: str, level: Level, known: Collection[Level]) -> None:
    """Check that a method has ``level``.

    Raises:
        PlanError: it is none of the ``known`` ones.
    """
    if level not in known:
        names = ", ".join(f"'{own.name}'" for own in known)
        raise PlanError(f"{method} has no level '{level.name}' ({level.value:g}); its levels are {names}")


@dataclass(frozen=True)
class Variant:
    """A training program that moves a part of the parameters; the exporter's own class of that name compiles it.

    Attributes:
        name: the program is ``train_<name>``.
        sizes: (tensor, leading sizes) of those that take part narrower; entries beyond them keep their bits.
        submodule: path of the only submodule that runs; empty for the whole module.
    """

    name: str
    sizes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    submodule: str = ""


@dataclass(frozen=True)
class DeviceProgram:
    """What a device is asked to do beyond plain SGD; compiled into the artifact's graph.

    Attributes:
        loss: ``cross_entropy``, ``bce_one_hot`` or ``label_masked_cross_entropy``.
        frobenius: pairs (u name, v name) under Frobenius decay lambda/2 ||UV||_F^2, exempt from weight decay.
        frozen: parameter names without gradient.
        accumulators: parameter names whose squared gradients are summed in the graph.
        masked: parameter names of which only entries under a mask move: tensor ``<name>#mask`` of the submodel.
        sparse: those of ``masked`` that a device holds as kept entries alone, each with the most it may keep; chosen
            for a device by :mod:`coordinator.submodels.sparse_layers`, not by methods.
        distillation: the received model teaches; ``distillation_weight`` and ``_temperature`` are in ``extra_hyper``.
        norm: ``running`` or ``batch`` statistics.
        frozen_norm: what batch norms with a frozen scale normalise with; empty: as the run says.
        variants: training programs of a part of the tensors, beside ``train``.
        turns: which programs a device runs: ``train`` alone; ``draw``, one for every batch, drawn among ``train`` and
            the variants (FjORD); ``each``, all variants on every batch (Split-Mix).
        probe: the losses of the received, the server's previous and thinned weights on the first batch come back, as
            the accumulator ``probe#losses``; see :mod:`export.loss_probe` for the tensors it reads.
        extra_hyper: values for further ``hyper`` inputs (``frobenius_lambda``).
        reports_labels: devices say which classes they have examples of; :attr:`Update.labels` is theirs.
        has_base: what is frozen and not among the submodel's tensors is in the run's base file, which devices map.
    """

    loss: str = "cross_entropy"
    frobenius: tuple[tuple[str, str], ...] = ()
    frozen: tuple[str, ...] = ()
    accumulators: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    sparse: tuple[tuple[str, int], ...] = ()
    distillation: bool = False
    norm: str = "running"
    frozen_norm: Literal["", "batch", "static"] = ""
    variants: tuple[Variant, ...] = ()
    turns: Literal["train", "draw", "each"] = "train"
    probe: bool = False
    extra_hyper: Mapping[str, float] = field(default_factory=dict)
    reports_labels: bool = False
    has_base: bool = False


@dataclass(frozen=True)
class LocalWork:
    """What a method asks of a round's devices in place of what ``[training]`` says; compiled into nothing.

    Attributes:
        steps: batches of the round; 0: as the run says.
        examples: size of the fixed sample that a device trains on; 0: all that it has.
    """

    steps: int = 0
    examples: int = 0


AS_THE_RUN_SAYS = LocalWork()
"""Nothing is asked for in place of ``[training]``."""


@dataclass(frozen=True)
class State:
    """What the server holds between rounds.

    Attributes:
        tensors: the global model, names of the dense module (parameters and buffers), float32 or int64.
        extra: further tensors of the method (spectra, counts); saved and restored with ``tensors``.
        round: rounds aggregated so far.
    """

    tensors: Tensors
    extra: Tensors = field(default_factory=dict)
    round: int = 0


@dataclass(frozen=True)
class Submodel:
    """A cut with its values: what one device gets in one round.

    Attributes:
        cut: the LayerCut records.
        tensors: weights and buffers in the cut's shapes and names.
        program: the device program.
    """

    cut: Cut
    level: Level
    tensors: Tensors
    program: DeviceProgram


@dataclass(frozen=True)
class Update:
    """One device's result with the submodel it was trained from.

    Attributes:
        tensors: the uploaded tensors (trained parameters, running buffers, accumulators), the cut's shapes.
        num_examples: examples the device trained on.
        labels: classes the device has examples of, where the program asks and the device says so.
    """

    device: str
    level: Level
    cut: Cut
    tensors: Tensors
    num_examples: int
    labels: tuple[int, ...] | None = None


class NotFinite(PlanError):
    """What updates add up to has values that are not finite."""
