"""The operations of one forward pass, and what a step keeps and computes when only some parameters are trained.

The forward pass runs once, on the meta device, with norms that use fixed statistics; what is trained is then a question
to the list of its operations. Counted is what the backward pass reads, which is less than what autograd saves: of a
convolution with a frozen weight nothing, of a norm with a frozen scale nothing, of a ReLU its output. Where devices
keep what frozen layers give for an example, a step's forward pass begins behind them.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from edge.contracts.manifest import InputSpec

ATEN = torch.ops.aten
BATCH = 32
"""The batch that figures are of, as that of :mod:`coordinator.submodels.costs`."""
_BATCH = -1
"""In place of an operation's number: what the step is given."""

Kind = Literal["product", "norm", "positive", "linear", "other"]
_KINDS: dict[Any, Kind] = {
    **dict.fromkeys((ATEN.convolution, ATEN.mm, ATEN.addmm, ATEN.bmm, ATEN.baddbmm), "product"),
    **dict.fromkeys(
        (ATEN.native_batch_norm, ATEN._native_batch_norm_legit, ATEN._native_batch_norm_legit_no_training), "norm"
    ),
    **dict.fromkeys((ATEN.relu, ATEN.relu_), "positive"),
    **dict.fromkeys(
        (ATEN.add, ATEN.add_, ATEN.sub, ATEN.neg, ATEN.cat, ATEN.mean, ATEN.sum, ATEN.avg_pool2d, ATEN.clone), "linear"
    ),
    **dict.fromkeys((ATEN._adaptive_avg_pool2d, ATEN.constant_pad_nd, ATEN.copy_, ATEN._to_copy), "linear"),
}
"""What the backward pass of an operator reads; nothing of a ``linear`` one, the output of any ``other``."""


@dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        inputs: values read, by number; a value is a piece of memory, so views of a tensor are one.
        parameters: names of those of ``inputs`` that are parameters.
        output: number of its first result.
        macs: multiply-accumulates for one example, of products.
        input_bytes, output_bytes: of its first input that is no parameter, and of its first result, at BATCH.
    """

    kind: Kind
    inputs: tuple[int, ...]
    parameters: Mapping[int, str]
    output: int
    macs: int
    input_bytes: int
    output_bytes: int

    @property
    def values(self) -> tuple[int, ...]:
        """Inputs that are no parameters."""
        return tuple(number for number in self.inputs if number not in self.parameters)


@dataclass(frozen=True)
class Work:
    """What a step keeps and computes.

    Attributes:
        kept: bytes of each value that the backward pass reads, at BATCH.
        input_macs: multiply-accumulates of the gradients of products' inputs, for one example.
        weight_macs: of those of a product's weight, by the weight's name.
        forward_macs: of the forward pass, or of the part that a step runs where features are kept.
    """

    kept: Mapping[int, int]
    input_macs: int
    weight_macs: Mapping[str, int]
    forward_macs: int

    @property
    def kept_bytes(self) -> int:
        """Of all values."""
        return sum(self.kept.values())

    @property
    def macs(self) -> int:
        """Of the step, for one example."""
        return self.forward_macs + self.input_macs + sum(self.weight_macs.values())


def forward_operations(module: nn.Module, spec: InputSpec) -> tuple[Operation, ...]:
    """What a forward pass of ``module`` does, in order; the module is not changed."""
    recorder = _Recorder(copy.deepcopy(module).to("meta").eval())
    dtype = torch.int64 if spec.dtype == "int64" else torch.float32
    with torch.no_grad(), recorder:
        recorder.module(torch.zeros(BATCH, *spec.shape, dtype=dtype, device="meta"))
    return tuple(recorder.operations)


def step_work(
    operations: Sequence[Operation],
    trained: Collection[str],
    shares: Mapping[str, float] | None = None,
    *,
    keeps_features: bool = False,
) -> Work:
    """The step that trains the parameters ``trained``.

    Args:
        shares: of the output channels trained, by the name of the weight; 1 of those not named.
        keeps_features: whether devices keep what frozen layers give, so that steps do not run them.
    """
    needs: set[int] = set()
    kept: dict[int, int] = {}
    made: set[int] = set()  # the batch itself is held anyway
    input_macs, weight_macs = 0, dict[str, int]()
    for operation in operations:
        computed = [value for value in operation.values if value in made]
        made.add(operation.output)
        wanted = [name for name in operation.parameters.values() if name in trained]
        through = [value for value in operation.values if value in needs]
        if not wanted and not through:
            continue
        needs.add(operation.output)
        if operation.kind == "product":
            weights = [name for name in wanted if _is_weight(name)]
            is_of_values = len(operation.values) > 1  # two activations: each one's gradient reads the other
            if weights or is_of_values:
                kept.update(dict.fromkeys(computed[:1], operation.input_bytes))
            for name in weights:
                weight_macs[name] = weight_macs.get(name, 0) + round(operation.macs * (shares or {}).get(name, 1.0))
            input_macs += operation.macs * len(through)
        elif operation.kind == "norm":
            if any(_is_weight(name) for name in wanted):
                kept.update(dict.fromkeys(computed[:1], operation.input_bytes))
        elif operation.kind == "positive" or operation.kind == "other":
            kept[operation.output] = operation.output_bytes
    macs = _macs_behind_features(operations, trained) if keeps_features else sum(op.macs for op in operations)
    return Work(kept, input_macs, weight_macs, macs)


def _macs_behind_features(operations: Sequence[Operation], trained: Collection[str]) -> int:
    """Of the forward pass that begins at the kept value, where :func:`export.features.split.split` divides a step."""
    latest: dict[int, int] = {}
    parents: list[tuple[int, ...]] = []
    is_frozen: list[bool] = []
    for number, operation in enumerate(operations):
        parents.append(tuple(latest.get(value, _BATCH) for value in operation.values))
        is_frozen.append(
            not any(name in trained for name in operation.parameters.values())
            and all(parent == _BATCH or is_frozen[parent] for parent in parents[number])
        )
        latest[operation.output] = number
    trained_macs = sum(op.macs for op, frozen in zip(operations, is_frozen, strict=True) if not frozen)
    frozen_macs = sum(op.macs for op in operations) - trained_macs
    read = {
        parent
        for own, frozen in zip(parents, is_frozen, strict=True)
        for parent in own
        if not frozen and (parent == _BATCH or is_frozen[parent])
    }
    for boundary in reversed([number for number, frozen in enumerate(is_frozen) if frozen]):
        again, front = set[int](), list(read)
        while front and _BATCH not in again:
            if (number := front.pop()) != boundary and number not in again:
                again.add(number)
                front += parents[number] if number != _BATCH else ()
        if _BATCH not in again:
            frozen_macs = min(frozen_macs, sum(operations[number].macs for number in again))
    return trained_macs + frozen_macs


def _is_weight(name: str) -> bool:
    """Whether a parameter multiplies what comes in; a bias is added to it."""
    return not name.rpartition(".")[2].startswith("bias")


class _Recorder(TorchDispatchMode):
    """Writes down every operation of a forward pass."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As of the mode in :mod:`export.draws`."""
        return False

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.operations: list[Operation] = []
        self._names = {_storage(p): name for name, p in module.named_parameters()}
        self._constants = {_storage(b) for b in module.buffers()}
        self._alive: list[Tensor] = []  # storages are told apart by address, so none may be freed meanwhile

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        inputs = [v for v in tree_flatten((args, kwargs))[0] if isinstance(v, Tensor)]
        results = [v for v in tree_flatten(out)[0] if isinstance(v, Tensor)]
        self._alive += results
        inputs = [v for v in inputs if _storage(v) not in self._constants]
        if not results or not inputs:
            return out
        kind = _KINDS.get(func.overloadpacket, "other")
        first = results[0]
        numbers = [_storage(v) for v in inputs]
        if _storage(first) in numbers and kind == "other":
            return out  # a view, or written in place
        own = {n: self._names[n] for n in numbers if n in self._names}
        given = [v for v in inputs if _storage(v) not in own]
        self.operations.append(
            Operation(
                kind,
                tuple(dict.fromkeys(numbers)),
                own,
                _storage(first),
                _macs(func.overloadpacket, args, first) // BATCH,
                _bytes(given[0]) if given else 0,
                _bytes(first),
            )
        )
        return out


def _macs(op: Any, args: Any, out: Tensor) -> int:
    if op is ATEN.convolution:
        is_transposed = bool(args[6])
        return (args[0] if is_transposed else out).numel() * args[1][0].numel()
    if _KINDS.get(op) == "product":
        left = args[1] if op in (ATEN.addmm, ATEN.baddbmm) else args[0]
        return out.numel() * int(left.shape[-1])
    return 0


def _bytes(value: Tensor) -> int:
    return value.numel() * value.element_size()


def _storage(value: Tensor) -> int:
    return int(value.untyped_storage()._cdata)
