"""A module as it is scored on a CPU: batch norms folded into the convolutions before them, and what follows a
convolution (a sum with another branch, ReLU) computed in the pass that writes its output.

The same function but for rounding: logits move in the last bits of float32, as they do with another batch size.
"""

from __future__ import annotations

import operator
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_APART = 1e-3
"""Of the largest logit. Folded ResNets were 1e-6 of it apart from the layers one by one (measured)."""


def inference_form(module: nn.Module, example: Tensor) -> nn.Module:
    """``module``, which is in evaluation mode, with its convolutions as above; itself where it cannot be followed.

    Args:
        example: inputs [B, C, H, W] on a CPU; both forms have to give the same for them, to a thousandth of the
            largest output.
    """
    if example.device.type != "cpu" or example.dtype != torch.float32 or not torch.backends.mkldnn.is_available():
        return module
    if not any(type(part) is nn.Conv2d for part in module.modules()):
        return module
    try:
        form = _fused(module)
        with torch.no_grad():
            expected, found = module(example), form(example)
        largest = float(expected.abs().max())
        is_same = found.shape == expected.shape and float((found - expected).abs().max()) <= MOST_APART * largest
    except Exception:  # a module of anyone's: what its forward does when it is followed is not known
        return module
    return form if is_same else module


class FusedConv(nn.Module):
    """A convolution with what follows it.

    Attributes:
        has_relu: whether ReLU ends it.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.register_buffer("weight", conv.weight.detach())
        self.register_buffer("bias", None if conv.bias is None else conv.bias.detach())
        self._geometry = [list(conv.padding), list(conv.stride), list(conv.dilation), conv.groups]
        self.has_relu = False

    def fold(self, norm: nn.BatchNorm2d) -> None:
        """Take in a batch norm with its running statistics."""
        assert norm.running_var is not None
        assert norm.running_mean is not None
        scale_O = torch.rsqrt(norm.running_var + norm.eps)
        shift_O = -norm.running_mean if self.bias is None else self.bias - norm.running_mean
        if norm.weight is not None:
            scale_O = scale_O * norm.weight.detach()
        shift_O = shift_O * scale_O
        if norm.bias is not None:
            shift_O = shift_O + norm.bias.detach()
        layout = torch.channels_last if _is_channels_last(self.weight) else torch.contiguous_format
        self.weight = (self.weight * scale_O[:, None, None, None]).contiguous(memory_format=layout)
        self.bias = shift_O

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """The convolution of ``x``, plus ``other`` of the output's shape."""
        relu = "relu" if self.has_relu else None
        result: Tensor
        if other is None:
            result = torch.ops.mkldnn._convolution_pointwise(
                x, self.weight, self.bias, *self._geometry, relu or "none", [], ""
            )
        else:
            result = torch.ops.mkldnn._convolution_pointwise.binary(
                x, other, self.weight, self.bias, *self._geometry, "add", 1.0, relu, [], ""
            )
        return result


class InferenceForm(nn.Module):
    """A graph of a module's operations, run one by one.

    No code is made of it, as ``fx.GraphModule`` does: torch keeps that for as long as the process lives.

    Attributes:
        graph: what is run.
    """

    def __init__(self, graph: fx.Graph, module: nn.Module, parts: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.graph = graph
        self.parts = nn.Module()
        for node in graph.nodes:
            if node.op == "call_module":
                _place(self.parts, str(node.target), parts[str(node.target)])
            elif node.op == "get_attr":
                _place(self.parts, str(node.target), operator.attrgetter(str(node.target))(module))
        self._interpreter = fx.Interpreter(self.parts, graph=graph)

    def forward(self, x: Tensor) -> Tensor:
        """What the module gives for ``x``."""
        result: Tensor = self._interpreter.run(x)
        return result


def _place(root: nn.Module, target: str, value: object) -> None:
    *owners, name = target.split(".")
    for owner in owners:
        if not hasattr(root, owner):
            setattr(root, owner, nn.Module())
        root = getattr(root, owner)
    setattr(root, name, value)


def _fused(module: nn.Module) -> InferenceForm:
    graph = fx.Tracer().trace(module)
    parts = dict(module.named_modules(remove_duplicate=False))
    convs = _convolutions(graph, parts)
    for node in list(graph.nodes):
        before = _convolution_before(node, convs, parts)
        if before is None:
            continue
        conv = convs[before]
        if _is_sum(node):
            other = next(value for value in node.args if value is not before)
            # Where the sum is, the other branch is there, too.
            with graph.inserting_before(node):
                placed = graph.create_node("call_module", before.target, (before.args[0], other))
            node.replace_all_uses_with(placed)
            del convs[before]
            convs[placed] = conv
            graph.erase_node(node)
            graph.erase_node(before)
            continue
        norm = _part(node, parts)
        if isinstance(norm, nn.BatchNorm2d):
            conv.fold(norm)
        else:
            conv.has_relu = True
        node.replace_all_uses_with(before)
        graph.erase_node(node)
    graph.lint()
    return InferenceForm(graph, module, parts)


def _convolutions(graph: fx.Graph, parts: dict[str, nn.Module]) -> dict[fx.Node, FusedConv]:
    """Nodes of convolutions that are called once, put in place of those in ``parts``."""
    calls = Counter(id(_part(node, parts)) for node in graph.nodes if node.op == "call_module")
    found = {}
    for node in graph.nodes:
        conv = _part(node, parts)
        if type(conv) is not nn.Conv2d or calls[id(conv)] > 1 or len(node.args) != 1 or node.kwargs:
            continue
        if conv.padding_mode == "zeros" and not isinstance(conv.padding, str):
            found[node] = FusedConv(conv)
            parts[str(node.target)] = found[node]
    return found


def _convolution_before(
    node: fx.Node, convs: Mapping[fx.Node, FusedConv], parts: Mapping[str, nn.Module]
) -> fx.Node | None:
    """The convolution that ``node`` can be computed with: nothing else reads its output."""
    if not (_is_norm(node, parts) or _is_relu(node, parts) or _is_sum(node)):
        return None
    for value in _read(node):
        if value not in convs or len(value.users) > 1 or convs[value].has_relu:
            continue
        has_other = len(value.args) > 1
        if (_is_norm(node, parts) or _is_sum(node)) and has_other:
            continue
        return value
    return None


def _read(node: fx.Node) -> Iterator[fx.Node]:
    return (value for value in node.args if isinstance(value, fx.Node))


def _is_sum(node: fx.Node) -> bool:
    """Of two different branches."""
    is_add = node.op == "call_function" and node.target in (operator.add, torch.add, operator.iadd)
    return is_add and not node.kwargs and len(set(_read(node))) == len(node.args) == 2


def _is_relu(node: fx.Node, parts: Mapping[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return type(_part(node, parts)) is nn.ReLU
    return node.op == "call_function" and node.target in (torch.relu, nn.functional.relu)


def _is_norm(node: fx.Node, parts: Mapping[str, nn.Module]) -> bool:
    norm = _part(node, parts)
    return type(norm) is nn.BatchNorm2d and not norm.training and norm.running_mean is not None


def _part(node: fx.Node, parts: Mapping[str, nn.Module]) -> Any:
    """The module that ``node`` calls."""
    return parts.get(str(node.target)) if node.op == "call_module" else None


def _is_channels_last(weight: Tensor) -> bool:
    return weight.is_contiguous(memory_format=torch.channels_last)
