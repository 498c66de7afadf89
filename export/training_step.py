"""What one training step is: loss or task, optimizer, regulariser, norm mode, frozen tensors.

A specification only. :mod:`export.step_functions` writes the step out in torch, :mod:`export.capture` traces it.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from edge.contracts.manifest import InputSpec
from edge.contracts.tensors import FEATURES

Loss = Literal["cross_entropy", "bce_one_hot", "label_masked_cross_entropy"]

CachedFeatures = Literal["", "float32", "float16", "int8"]
KeptActivations = Literal["", "float16"]

INPUT, TARGET = "input", "target"
"""Tensors of the programs that hold ``x`` and ``y`` of the data."""
_TENSOR_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_TAKEN = frozenset(
    {"x", INPUT, TARGET, FEATURES, "label_mask", "loss", "correct", "logits", "lr", "momentum", "examples"}
)
"""Names that mean something else in programs."""


class Optimizer(msgspec.Struct, frozen=True, kw_only=True):
    """An update rule, in torch's formulas. The switches decide what is compiled; the values are ``hyper`` inputs.

    Attributes:
        kind: ``sgd``, ``adam`` (L2 added to the gradient) or ``adamw`` (decoupled decay).
        momentum: sgd only; adds one slot per trained parameter.
        nesterov: sgd with momentum only.
        weight_decay: whether there is a ``weight_decay`` input. Factors of a pair never decay.
    """

    kind: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: bool = True
    nesterov: bool = False
    weight_decay: bool = True

    def __post_init__(self) -> None:
        if self.nesterov and not (self.kind == "sgd" and self.momentum):
            raise ValueError("nesterov needs sgd with momentum=True; drop nesterov or set momentum")

    @property
    def slots(self) -> tuple[str, ...]:
        """Suffixes of the per-parameter state tensors."""
        if self.kind == "sgd":
            return ("momentum",) if self.momentum else ()
        return ("exp_avg", "exp_avg_sq")

    @property
    def hyper(self) -> tuple[str, ...]:
        """Names of the scalar inputs the rule reads."""
        names = ["lr"]
        if self.kind == "sgd" and self.momentum:
            names.append("momentum")
        if self.weight_decay:
            names.append("weight_decay")
        if self.kind != "sgd":
            names += ["beta1", "beta2", "eps"]
        return tuple(names)


class FactorPair(msgspec.Struct, frozen=True):
    """Two parameters whose product is one dense layer, penalised by lambda/2 * ||U V||_F^2.

    Attributes:
        u: the second factor, shape [out, rank, ...].
        v: the first factor, shape [rank, in, ...].

    The rank is dim 1 of u and dim 0 of v however the layer was unrolled (two convolutions or two matrices).
    Source: FedHM, Frobenius decay.
    """

    u: str
    v: str


class Variant(msgspec.Struct, frozen=True):
    """A training program that moves a part of the parameters: nested widths (FjORD), one atom of several (Split-Mix).

    Attributes:
        name: the program is ``train_<name>``; the empty name stands for ``train`` itself.
        sizes: (parameter or running statistic, its leading sizes) for those that take part narrower than they are;
            entries beyond them get no gradient, momentum, decay or statistics.
        submodule: path of the only submodule that runs; its parameters are the only ones that move. "" = the module.
    """

    name: str
    sizes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    submodule: str = ""

    @property
    def program(self) -> str:
        """Name of the program."""
        return f"train_{self.name}" if self.name else "train"


class SparseWeight(msgspec.Struct, frozen=True):
    """A masked weight that a device holds as the entries its mask keeps, with sparse kernels.

    Attributes:
        name: of the parameter, one of the step's ``masked``.
        capacity: the most entries a mask may keep.
    """

    name: str
    capacity: int


class BatchTensor(msgspec.Struct, frozen=True):
    """A tensor of a batch beside the model's input.

    Attributes:
        name: of the array in the data; ``y`` is tensor ``target`` of the programs, others keep their names.
        shape: of one example.
        symbols: of ``int64``: values are 0 to ``symbols`` - 1, or -100 for a place that counts nothing.
        role: ``input`` for what the model reads, ``target`` for what it is held against.
    """

    name: str
    shape: tuple[int, ...] = ()
    dtype: Literal["float32", "int64"] = "float32"
    symbols: int = 0
    role: Literal["input", "target"] = "target"

    def __post_init__(self) -> None:
        if not _TENSOR_NAME.fullmatch(self.name) or self.name in _TAKEN:
            raise ValueError(f"batch tensor '{self.name[:80]}': a plain name that is none of {sorted(_TAKEN)} expected")
        if self.dtype == "int64" and self.symbols < 1:
            raise ValueError(f"batch tensor '{self.name}': int64 needs symbols, how many values there are")

    @property
    def tensor(self) -> str:
        """Name of the tensor in programs and manifests."""
        return TARGET if self.name == "y" else self.name


class ParameterGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters that move otherwise than the step's others. The switches decide what is compiled, values are inputs.

    Attributes:
        match: pattern of their names, as of ``fnmatch``; of several groups the first that matches counts.
        lr_factor: whether their learning rate is ``lr`` times an input of the group's own.
        weight_decay: the ``step``'s, the group's ``own`` input, or ``none``.
    """

    match: str
    lr_factor: bool = False
    weight_decay: Literal["step", "own", "none"] = "step"

    def factor_name(self, number: int) -> str:
        """Name of the input that multiplies ``lr`` in group ``number``, from 1."""
        return f"lr_factor_{number}"

    def decay_name(self, number: int) -> str:
        """Name of the input that is the weight decay of group ``number``, from 1."""
        return f"weight_decay_{number}"

    def hyper(self, number: int) -> tuple[str, ...]:
        """Names of the scalar inputs of group ``number``, from 1."""
        factor = (self.factor_name(number),) if self.lr_factor else ()
        return (*factor, self.decay_name(number)) if self.weight_decay == "own" else factor


class StepSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides the exported step, apart from the module itself.

    Attributes:
        input: layout, shape and dtype of one example.
        classes: number of classes, the size of dim 1 of the logits.
        batch: the batch size the cost is stated for; every other one runs in the same graph.
        loss: mean over the batch. ``label_masked_cross_entropy`` multiplies the logits with the input
            ``label_mask`` [classes], so that logits of absent classes are 0 (HeteroFL), before cross-entropy.
        clip_norm: whether the gradients are scaled to a total norm of at most the ``clip_norm`` input.
        frobenius: factor pairs that get Frobenius decay, weighted by the ``frobenius_lambda`` input.
        frozen: parameters without gradient, slot or output.
        squared_gradient: parameters with an accumulator ``<name>#squared_gradient`` += gradient * gradient.
        norm: ``running``: batch norm trains with batch statistics, moves its running ones and evaluates with them;
            ``batch``: batch statistics in training and evaluation, no running ones in the step.
        frozen_norm: how a batch norm whose parameters are frozen normalises in training: with ``batch`` statistics or
            with the ``static`` ones of its buffers; these too where its scale alone is frozen.
        target_shape: shape of one target; () for one class per example, [T] for logits [batch, classes, T].
        masked: parameters with a boolean input ``<name>#mask``: entries where it is False do not move. Squared
            gradients are those of all entries. Source: PruneFL, Algorithm 1.
        distillation: the received model, tensors ``<name>#teacher``, teaches: the loss gets
            ``distillation_weight`` T^2 KL(softmax(teacher / T) || softmax(logits / T)) with T =
            ``distillation_temperature``, mean over targets. Source: FedHM preprint, self-distillation.
        proximal: whether ``proximal_mu``/2 ||w - w_received||^2 is added for every trained parameter w; w_received are
            tensors ``<name>#teacher``, as of distillation. Source: FedProx (Li et al.), equation 2.
        corrected: whether the fixed tensors ``<name>#correction`` are added to the gradients of all trained parameters,
            before masks and clipping. Source: SCAFFOLD (Karimireddy et al., ICML 2020), equation 3.
        variants: further training programs, see :class:`Variant`.
        sparse: masked weights of linear layers and plain convolutions that are held as kept entries alone: masks are
            values still, any that keeps at most ``capacity`` entries. What a mask drops is 0.
        probe: whether there is a program that compares losses before the first step, see :mod:`export.loss_probe`.
        micro_batches, recompute, kept_activations: as in :class:`export.forms.step_form.StepForm`.
        task: name of the task as :mod:`export.tasks` has it; empty: classification by ``loss``.
        task_options: handed to the task's class.
        tensors: of a batch beside ``x``, as the task says.
        groups: parameters with a learning rate or a weight decay of their own.
        cached_features: type in which devices keep what enters the first trained layer, from program ``features``;
            empty: a step runs the frozen layers itself. A cut whose first layer is trained has nothing to cache. The
            step of a language model reads that type; other steps read float32, and devices round. ``int8`` is of
            these others alone.
    """

    input: InputSpec
    classes: int
    batch: int = 32
    loss: Loss = "cross_entropy"
    optimizer: Optimizer = Optimizer()
    clip_norm: bool = False
    frobenius: tuple[FactorPair, ...] = ()
    frozen: tuple[str, ...] = ()
    squared_gradient: tuple[str, ...] = ()
    norm: Literal["running", "batch"] = "running"
    frozen_norm: Literal["batch", "static"] = "batch"
    target_shape: tuple[int, ...] = ()
    masked: tuple[str, ...] = ()
    distillation: bool = False
    variants: tuple[Variant, ...] = ()
    probe: bool = False
    sparse: tuple[SparseWeight, ...] = ()
    micro_batches: int = 1
    recompute: bool = False
    kept_activations: KeptActivations = ""
    proximal: bool = False
    task: str = ""
    task_options: dict[str, Any] = {}
    tensors: tuple[BatchTensor, ...] = ()
    corrected: bool = False
    groups: tuple[ParameterGroup, ...] = ()
    cached_features: CachedFeatures = ""

    def __post_init__(self) -> None:
        if self.task:
            self._check_task()
        for weight in self.sparse:
            if weight.capacity < 1:
                raise ValueError(f"sparse weight '{weight.name}': capacity {weight.capacity}, at least 1 is needed")
            if weight.name not in self.masked:
                raise ValueError(f"sparse weight '{weight.name}' has no mask; name it in masked too")
            if self.proximal:
                raise ValueError(f"sparse weight '{weight.name}': the received weights are dense; hold it dense, too")
            if self.corrected:
                raise ValueError(f"sparse weight '{weight.name}': its correction is dense; hold it dense, too")
            if weight.name in self.squared_gradient:
                raise ValueError(
                    f"sparse weight '{weight.name}': squared gradients are those of all entries; hold it dense"
                )

    def _check_task(self) -> None:
        used = {
            "a loss on logits (label masks, one-hot BCE)": self.loss != "cross_entropy",
            "a teacher model": self.distillation,
            "a comparison of losses before the first step": self.probe,
        }
        for what, is_used in used.items():
            if is_used:
                raise ValueError(f"task '{self.task}': {what} is made for classification; choose a method without it")
        names = [tensor.name for tensor in self.tensors]
        if len(set(names)) < len(names):
            raise ValueError(f"task '{self.task}': a batch tensor appears twice among {names}")

    @property
    def accumulates(self) -> bool:
        """Whether gradients of micro-batches are added up."""
        return self.micro_batches > 1

    @property
    def capacities(self) -> dict[str, int]:
        """Capacity by name, of the sparse weights."""
        return {weight.name: weight.capacity for weight in self.sparse}

    @property
    def hyper(self) -> tuple[str, ...]:
        """Names of the scalar float32 inputs of the ``train`` program, in graph order."""
        names = self.optimizer.hyper + self.group_hyper
        names += ("frobenius_lambda",) if self.frobenius else ()
        names += ("proximal_mu",) if self.proximal else ()
        names += ("clip_norm",) if self.clip_norm else ()
        return names + (("distillation_weight", "distillation_temperature") if self.distillation else ())

    @property
    def group_hyper(self) -> tuple[str, ...]:
        """Names of the scalar inputs of the groups, in their order."""
        return tuple(name for number, group in enumerate(self.groups, 1) for name in group.hyper(number))

    @property
    def factors(self) -> frozenset[str]:
        """Names of all factor parameters; they get no ordinary weight decay."""
        return frozenset(name for pair in self.frobenius for name in (pair.u, pair.v))


def symbols_of(spec: StepSpec) -> dict[str, int]:
    """How many values each int64 tensor of a task's batch has, by its name in programs."""
    return {tensor.tensor: tensor.symbols for tensor in spec.tensors if tensor.dtype == "int64"}


def step_values(spec: StepSpec) -> dict[str, Any]:
    """The step as manifests and keys have it: what came after the first releases is left out where it is not used."""
    values: dict[str, Any] = msgspec.to_builtins(spec)
    for later in ("proximal", "corrected", "cached_features", "kept_activations"):
        if not values[later]:
            del values[later]
    if not spec.task:
        for name in ("task", "task_options", "tensors"):
            del values[name]
    if not spec.groups:
        del values["groups"]
    return values
