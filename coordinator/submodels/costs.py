"""What a cut costs, computed from the cut module on the meta device: nothing is run, measured or masked.

The counts are the papers' conventions, so that their tables can be checked; what a device really needs is predicted
from the exported graph (``Cost`` of the manifest) and corrected by what devices measure.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from coordinator.submodels.build import apply_cut
from coordinator.submodels.layout import SHORTCUTS
from edge.contracts.manifest import InputSpec
from export.language.additions import is_beside_base
from export.language.causal_model import CausalModel

if TYPE_CHECKING:
    from coordinator.submodels.record import Cut

BATCH = 32
"""The batch of the papers' memory columns."""

_ATEN = torch.ops.aten
_CONVOLUTIONS = {_ATEN.convolution}
NORMS = frozenset({_ATEN.native_batch_norm, _ATEN._native_batch_norm_legit, _ATEN.cudnn_batch_norm})
"""Batch norms as the operations that torch's layers become, forward and backward."""
NORMS_BACKWARD = frozenset({_ATEN.native_batch_norm_backward, _ATEN.cudnn_batch_norm_backward})
_NORMS = {*NORMS, _ATEN.native_layer_norm, _ATEN.native_group_norm}
_RECTIFIERS = {_ATEN.relu, _ATEN.relu_, _ATEN.hardtanh, _ATEN.hardtanh_, _ATEN.leaky_relu, _ATEN.leaky_relu_}
_AVERAGE_POOLS = {_ATEN.avg_pool1d, _ATEN.avg_pool2d, _ATEN._adaptive_avg_pool2d, _ATEN.mean}
_PRODUCTS = {_ATEN.mm, _ATEN.bmm, _ATEN.addmm, _ATEN.baddbmm}


@dataclass(frozen=True)
class Costs:
    """Counts of one cut.

    Attributes:
        params: parameters, elements.
        macs: per sample, forward: multiply-accumulates of convolutions and matrix products, 2 per batch-norm element,
            1 per ReLU element, and the input elements of average pools. Source: the ptflops convention of FedHM.
        activation_elements: outputs of all convolutions and norms at the batch, without the stem and the shortcuts.
            Source: PriSM, Table 1, whose "Mem" counts elements at batch 32.
        train_bytes: 4 x (op outputs that need a gradient, at the batch, + parameters + trained parameters).
            Source: SLT's memory model, without its copies of identity shortcuts.
        bytes_up: trained parameters and running statistics, float32.
        bytes_down: all parameters and running statistics, float32; of a language model what is beside its base, which
            is sent once.
    """

    params: int
    macs: int
    activation_elements: int
    train_bytes: int
    bytes_up: int
    bytes_down: int

    def to_dict(self) -> dict[str, int]:
        """Names and counts, as ``apportion costs --json`` gives them."""
        return asdict(self)


def cut_costs(module: nn.Module, cut: Cut, spec: InputSpec, *, batch: int = BATCH) -> Costs:
    """Costs of ``module`` under ``cut`` for inputs of ``spec``; ``module`` is not changed.

    Args:
        batch: of the memory figures; the MACs are per sample.
    """
    whole = cut.get("")
    if whole is not None and whole.atoms:
        return _costs_of_atoms(module, cut, spec, batch=batch)
    run_batch = max(batch, 2)  # batch norm refuses a single example in training
    # Shapes only: ResNet-34 at batch 32 takes half a second and no memory.
    built = apply_cut(module, cut).to("meta").train()
    dtype = torch.int64 if spec.dtype == "int64" else torch.float32
    counter = _Counter(built)
    with counter.layers(), counter:
        x = torch.zeros(run_batch, *spec.shape, dtype=dtype, device="meta")
        # A language model's step has no logits: its head goes over the vocabulary in pieces.
        read = built.hidden(x) if isinstance(built, CausalModel) else built(x)
    params = sum(p.numel() for p in built.parameters())
    trained = sum(p.numel() for p in built.parameters() if p.requires_grad)
    statistics = sum(b.numel() for b in built.buffers() if b.is_floating_point())
    held = params
    if isinstance(built, CausalModel):
        beside = [p for name, p in built.named_parameters() if is_beside_base(name)]
        held = sum(p.numel() for p in beside)
        trained = sum(p.numel() for p in beside if p.requires_grad)  # the base is mapped and never written
        counter.macs += read.numel() * built.architecture.vocabulary
    return Costs(
        params=params,
        macs=counter.macs // run_batch,
        activation_elements=counter.block_elements * batch // run_batch,
        train_bytes=4 * (counter.gradient_elements * batch // run_batch + params + trained),
        bytes_up=4 * (trained + statistics),
        bytes_down=4 * (held + statistics),
    )


def _costs_of_atoms(module: nn.Module, cut: Cut, spec: InputSpec, *, batch: int) -> Costs:
    """All atoms are held and compute, one after the other: activations are those of one."""
    count = len(cut[""].atoms)
    one = cut_costs(module, {path: record for path, record in cut.items() if path}, spec, batch=batch)
    trained = one.bytes_up - (one.bytes_down - 4 * one.params)
    return Costs(
        params=count * one.params,
        macs=count * one.macs,
        activation_elements=one.activation_elements,
        train_bytes=one.train_bytes + (count - 1) * (4 * one.params + trained),
        bytes_up=count * one.bytes_up,
        bytes_down=count * one.bytes_down,
    )


_LIKE_FIRST = (
    _ATEN.relu.default,
    _ATEN._log_softmax.default,
    _ATEN._log_softmax_backward_data.default,
    _ATEN.threshold_backward.default,
    _ATEN.neg.default,
)
"""Operations that give a tensor of their first operand's shape and type."""
_FACTORIES = (_ATEN.arange.default, _ATEN.ones_like.default)
_REDUCTIONS = (_ATEN.argmax.default, _ATEN.sum.default, _ATEN.sum.dim_IntList)
_ARITHMETIC = (_ATEN.mul.Tensor, _ATEN.add.Tensor, _ATEN.sub.Tensor, _ATEN.div.Tensor)


def shaped(func: Any, args: Any, kwargs: Any) -> Any:
    """What ``func`` gives, of operations for whose shapes torch would import its compiler, which takes seconds."""
    if func in _FACTORIES and not (kwargs or {}).get("dtype"):
        if func is _ATEN.ones_like.default:
            return args[0].new_empty(args[0].shape)
        if isinstance(args[0], int):
            return torch.empty((args[0],), dtype=torch.int64, device="meta")
    if kwargs:
        return None
    if func is _ATEN.mm.default:
        return args[0].new_empty((args[0].shape[0], args[1].shape[1]))
    if func is _ATEN.addmm.default:
        return args[1].new_empty((args[1].shape[0], args[2].shape[1]))
    if func in _LIKE_FIRST:
        return args[0].new_empty(args[0].shape)
    if func is _ATEN.eq.Tensor or (func in _ARITHMETIC and args[0].is_floating_point()):  # a quotient of counts is none
        shapes = (getattr(value, "shape", ()) for value in args[:2])
        of_both = torch.bool if func is _ATEN.eq.Tensor else torch.result_type(*args[:2])
        return args[0].new_empty(np.broadcast_shapes(*shapes), dtype=of_both)
    if func in _REDUCTIONS and (args[0].is_floating_point() or func is _ATEN.argmax.default):
        return _reduced(func, *args)
    if func in (_ATEN.native_batch_norm.default, _ATEN._native_batch_norm_legit.default) and args[5]:  # in training
        x = args[0]
        return x.new_empty(x.shape), x.new_empty((x.shape[1],)), x.new_empty((x.shape[1],))
    return None


def _reduced(func: Any, x: Tensor, axes: Any = None, keeps: bool = False) -> Tensor:
    """``x`` without ``axes``, all of them where none is given; a length of 1 stays in their places if ``keeps``."""
    gone = {axis % x.dim() for axis in ([axes] if isinstance(axes, int) else axes or range(x.dim()))} if x.dim() else {}
    sizes = [1 if axis in gone else size for axis, size in enumerate(x.shape) if keeps or axis not in gone]
    return x.new_empty(sizes, dtype=torch.int64 if func is _ATEN.argmax.default else x.dtype)


class _Counter(TorchDispatchMode):
    """Sees every operation of one forward pass, with the layer it belongs to."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As of the mode in :mod:`export.draws`."""
        return False

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module
        self._path = [""]
        self._stem_channels = 0
        self._blocks_began = False
        self._trained = {_storage(p) for p in module.parameters() if p.requires_grad}
        self._alive: list[Tensor] = []
        self.macs = 0
        self.block_elements = 0
        self.gradient_elements = 0

    def layers(self) -> _LayerPaths:
        """Keeps the path of the layer being run, while inside the context."""
        return _LayerPaths(self._module, self._path)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = shaped(func, args, kwargs)
        if out is None:
            out = func(*args, **(kwargs or {}))
        inputs = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
        first = (
            out if isinstance(out, Tensor) else next((o for o in tree_flatten(out)[0] if isinstance(o, Tensor)), None)
        )
        if first is None:
            return out
        self._count(func.overloadpacket, inputs, first)
        self._follow_gradient(inputs, out, first)
        return out

    def _count(self, op: Any, inputs: list[Tensor], out: Tensor) -> None:
        if op in _CONVOLUTIONS:
            x, weight = inputs[0], inputs[1]
            is_transposed = out.shape[1] != weight.shape[0]
            self.macs += (x if is_transposed else out).numel() * weight[0].numel()
        elif op in _PRODUCTS:
            left = inputs[1] if op in (_ATEN.addmm, _ATEN.baddbmm) else inputs[0]
            self.macs += out.numel() * left.shape[-1]
        elif op in NORMS:
            self.macs += 2 * out.numel()
        elif op in _RECTIFIERS:
            self.macs += out.numel()
        elif op in _AVERAGE_POOLS:
            self.macs += inputs[0].numel()
        if op in _CONVOLUTIONS or op in _NORMS:
            self._count_block_output(op, out)

    def _count_block_output(self, op: Any, out: Tensor) -> None:
        if op in _CONVOLUTIONS and not self._stem_channels:
            self._stem_channels = out.shape[1]
            return
        if op in NORMS and not self._blocks_began and out.shape[1] == self._stem_channels:
            self._blocks_began = True  # the stem's own norm
            return
        self._blocks_began = True
        if not any(word.strip("*") in self._path[-1] for word in SHORTCUTS):
            self.block_elements += out.numel()

    def _follow_gradient(self, inputs: list[Tensor], out: Any, first: Tensor) -> None:
        sources = {_storage(value) for value in inputs}
        if not sources & self._trained:
            return
        for value in tree_flatten(out)[0]:
            if isinstance(value, Tensor) and _storage(value) not in sources:
                # Storages are told apart by address, so none may be freed while counting.
                self._alive.append(value)
                self._trained.add(_storage(value))
        if _storage(first) not in sources:
            self.gradient_elements += first.numel()


class _LayerPaths:
    """Pushes and pops module paths with forward hooks."""

    def __init__(self, module: nn.Module, stack: list[str]) -> None:
        self._module, self._stack = module, stack
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        for path, part in self._module.named_modules():
            enter = part.register_forward_pre_hook(lambda _part, _args, path=path: self._stack.append(path))
            leave = part.register_forward_hook(lambda _part, _args, _out: self._leave())
            self._handles += [enter, leave]

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _leave(self) -> None:
        self._stack.pop()


def _storage(value: Tensor) -> int:
    return int(value.untyped_storage()._cdata)
