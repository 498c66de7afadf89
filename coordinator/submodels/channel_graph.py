"""Every channel of a module traced from the layer that makes it to all that read it, with torch-pruning's graph.

torch-pruning decides which operations touch and how indices map between them (flatten, concatenation, split); here one
pass over its edges joins positions that are the same channel. Its own groups are asked for per layer and merge
positions that are fed by two channels, so they are not used.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from edge.contracts.errors import PlanError

if TYPE_CHECKING:
    from edge.contracts.manifest import InputSpec

Side = tuple[str, str]
"""(path of a layer or of a bare parameter, ``out`` or ``in``)."""

BATCH = 2
"""Examples traced with; one would make a batch dimension look like a channel of size 1."""

CUTTABLE = (
    _ConvNd,
    nn.Linear,
    _BatchNorm,
    nn.LayerNorm,
    nn.GroupNorm,
    _InstanceNorm,
    nn.PReLU,
    nn.Embedding,
    nn.LSTM,
)
"""Layers with a cut in width, subclasses included; and parameters that a module of the user's own holds directly."""


@dataclass(frozen=True)
class Traced:
    """What the trace found.

    Attributes:
        classes: side -> number of the channel at each position, [positions]; -1 where it must stay.
        order: layer -> when it first ran.
        whole: layer -> why its outputs must stay.
    """

    classes: Mapping[Side, np.ndarray]
    order: Mapping[str, int]
    whole: Mapping[str, str]


def trace(module: nn.Module, spec: InputSpec, selections: tuple[str, ...]) -> Traced:
    """Trace ``module`` on one zero batch.

    Raises:
        PlanError: it does not run on ``spec``, it has a layer without a cut in width whose inside cannot be followed
            either, or operations that cannot be followed.
    """
    name = type(module).__name__
    _refuse_opaque(module)
    copied = copy.deepcopy(module).float().eval().requires_grad_(True)
    dtype = torch.int64 if spec.dtype == "int64" else torch.float32
    example = torch.zeros(BATCH, *spec.shape, dtype=dtype)
    order, shapes = _run(copied, example, name)
    _mark_selections(copied, selections, shapes)
    try:
        import torch_pruning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = torch_pruning.DependencyGraph()
            outputs: list[Any] = []

            def keep(out: Any) -> Any:
                outputs.append(out)
                return out

            graph.build_dependency(copied, (example,), output_transform=keep, verbose=False)
            channels = _Channels(graph, copied, {id(out.grad_fn) for out in _tensors(outputs)})
            channels.follow()
    except PlanError:
        raise
    except Exception as error:  # a third party's code on anyone's module
        raise PlanError(
            f"the channels of {name} cannot be followed ({type(error).__name__}: {error}); use a factorized or frozen "
            "cut, or spell its forward in torch operations"
        ) from error
    channels.join_blocks()
    whole = channels.whole_layers(tuple(getattr(module, "whole_layers", ())))
    return Traced(channels.numbered(), order, whole)


def _refuse_opaque(module: nn.Module) -> None:
    for path, part in module.named_modules():
        holds = next(part.parameters(recurse=False), None) is not None
        is_opaque = type(part).__module__.startswith("torch.") and not isinstance(part, CUTTABLE)
        if (holds and is_opaque) or (isinstance(part, nn.LSTM) and (part.bidirectional or part.proj_size)):
            raise PlanError(
                f"layer '{path}': this {type(part).__name__} has no cut in width, nor can channels pass it; "
                "use a factorized or frozen cut, or another layer"
            )


def _run(module: nn.Module, example: Tensor, name: str) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    """When each module first ran, and the shape of its output."""
    order: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}

    def note(path: str, out: Any) -> None:
        order.setdefault(path, len(order))
        if isinstance(out, Tensor):
            shapes[path] = tuple(out.shape)

    handles = [
        part.register_forward_hook(lambda _part, _args, out, path=path: note(path, out))
        for path, part in module.named_modules()
    ]
    try:
        with torch.no_grad():
            module(example)
    except Exception as error:  # the module may be anyone's
        raise PlanError(
            f"{name} does not run on an example of shape {list(example.shape[1:])} ({type(error).__name__}: {error}); "
            "check $.model.input"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return order, shapes


def _tensors(value: Any) -> list[Tensor]:
    from torch.utils._pytree import tree_flatten

    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, Tensor)]


def _mark_selections(module: nn.Module, selections: tuple[str, ...], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Put a 1x1 convolution, whose inputs and outputs are told apart, where an identity shortcut is."""
    for path in selections:
        try:
            layer = module.get_submodule(path)
        except AttributeError as error:
            raise PlanError(f"no shortcut '{path}' in {type(module).__name__}") from error
        if not isinstance(layer, nn.Identity) or len(shapes.get(path, ())) != 4:
            raise PlanError(f"shortcut '{path}': a {type(layer).__name__}, an nn.Identity on [B, C, H, W] expected")
        channels = shapes[path][1]
        parent, _, child = path.rpartition(".")
        setattr(module.get_submodule(parent), child, nn.Conv2d(channels, channels, 1, bias=False))


Position = tuple[Any, str, int]
"""(node of the graph, ``out``, ``in`` or ``both``, index)."""


class _Channels:
    """Positions joined into channels: a union-find over the edges of torch-pruning's graph."""

    def __init__(self, graph: Any, module: nn.Module, results: set[int]) -> None:
        """``results``: identities of the autograd nodes whose values the module gives back."""
        self._graph, self._module, self._results = graph, module, results
        self._path = {part: path for path, part in module.named_modules()}
        self._parent: dict[Position, Position] = {}
        self._seen: dict[tuple[Any, str], dict[int, None]] = {}
        self._pinned: dict[Position, str] = {}

    def follow(self) -> None:
        """Start from every layer's outputs and follow them to whatever reads them."""
        for part, node in self._graph.module2node.items():
            count = self._outputs(part, node)
            if count:
                self._spread(node, self._graph.get_pruner_of_module(part).prune_out_channels, list(range(count)))

    def join_blocks(self) -> None:
        """Join positions that a layer's own form ties together: groups of convolutions and norms, declared blocks."""
        for part, node in list(self._graph.module2node.items()):
            if isinstance(part, _ConvNd) and part.groups > 1 and not self._is_both(node):
                if part.groups == part.in_channels:
                    multiple = part.out_channels // part.groups
                    for i in range(part.out_channels):
                        self._join((node, "in", i // multiple), (node, "out", i))
                    self._note(node, "in", part.in_channels)
                else:
                    self._equal(node, "in", part.in_channels, part.groups)
                    self._equal(node, "out", part.out_channels, part.groups)
            if isinstance(part, nn.GroupNorm) and 1 < part.num_groups < part.num_channels:
                self._equal(node, "both", part.num_channels, part.num_groups)
        for part in self._module.modules():
            for child, blocks in getattr(part, "equal_blocks", {}).items():
                layer = part.get_submodule(child)
                node = self._graph.module2node.get(layer)
                if node is not None:
                    end = "both" if self._is_both(node) else "out"
                    self._equal(node, end, self._outputs(layer, node), blocks)

    def whole_layers(self, patterns: tuple[str, ...]) -> dict[str, str]:
        """Pin what must stay whole; layer -> why."""
        owners: dict[int, int] = {}
        for _, parameter in self._module.named_parameters(remove_duplicate=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
        for node, end in list(self._seen):
            why = self._why_whole(node, end, patterns, owners)
            if why:
                for index in self._seen[node, end]:
                    self._pinned.setdefault(self._find((node, end, index)), why)
        found: dict[str, str] = {}
        for node, end in self._seen:
            path = self._path_of(node)
            if path is None or end == "in":
                continue
            reasons = [self._pinned.get(self._find((node, end, index))) for index in self._seen[node, end]]
            if reasons and all(reasons):
                found[path] = str(reasons[0])
        return found

    def numbered(self) -> dict[Side, np.ndarray]:
        """Side -> channel numbers by position; a depthwise convolution has both sides, a norm only ``out``."""
        numbers: dict[Position, int] = {}
        result: dict[Side, np.ndarray] = {}
        for (node, end), seen in self._seen.items():
            path = self._path_of(node)
            if path is None:
                continue
            row = np.full(max(seen) + 1, -1, np.int64)
            for index in seen:
                root = self._find((node, end, index))
                if root not in self._pinned:
                    row[index] = numbers.setdefault(root, len(numbers))
            result[path, "out" if end == "both" else end] = row
            if end == "both" and isinstance(node.module, _ConvNd):
                result[path, "in"] = row
        return result

    def _outputs(self, part: Any, node: Any) -> int:
        if isinstance(part, nn.Parameter):
            return int(part.shape[node.pruning_dim])
        if isinstance(part, (_ConvNd, nn.Linear, nn.Embedding, nn.LSTM)):
            return int(self._graph.get_pruner_of_module(part).get_out_channels(part))
        return 0

    def _spread(self, node: Any, handler: Any, indices: list[int]) -> None:
        from torch_pruning._helpers import _HybridIndex

        waiting = [(node, handler, indices)]
        while waiting:
            node, handler, indices = waiting.pop()
            end = self._end(node, handler)
            new = self._note_new(node, end, indices)
            if not new:
                continue
            for edge in node.dependencies:
                if not edge.is_triggered_by(handler):
                    continue
                mapped = [_HybridIndex(index, index) for index in new]
                for mapping in edge.index_mapping:
                    if mapping is not None:
                        mapped = mapping(mapped)
                other = self._end(edge.target, edge.handler)
                for item in mapped:
                    if item.root_idx is None:
                        raise PlanError(f"{edge.target.name}: repeated heads are not followed")
                    self._join((node, end, item.root_idx), (edge.target, other, item.idx))
                if mapped:
                    waiting.append((edge.target, edge.handler, [item.idx for item in mapped]))

    def _note_new(self, node: Any, end: str, indices: list[int]) -> list[int]:
        known = self._seen.setdefault((node, end), {})
        new = [index for index in indices if index not in known]
        known.update(dict.fromkeys(new))
        return new

    def _note(self, node: Any, end: str, count: int) -> None:
        self._note_new(node, end, list(range(count)))

    def _equal(self, node: Any, end: str, count: int, blocks: int) -> None:
        size = count // blocks
        self._note(node, end, count)
        for index in range(size, count):
            self._join((node, end, index % size), (node, end, index))

    def _is_both(self, node: Any) -> bool:
        pruner = self._graph.get_pruner_of_module(node.module)
        return bool(pruner.prune_out_channels == pruner.prune_in_channels)

    def _end(self, node: Any, handler: Any) -> str:
        if self._is_both(node):
            return "both"
        return "out" if handler == self._graph.get_pruner_of_module(node.module).prune_out_channels else "in"

    def _path_of(self, node: Any) -> str | None:
        """Path of a layer or bare parameter; None for an operation."""
        if isinstance(node.module, nn.Parameter):
            return str(self._graph._param_to_name[node.module])
        return self._path.get(node.module)

    def _why_whole(self, node: Any, end: str, patterns: tuple[str, ...], owners: Mapping[int, int]) -> str:
        if end != "in" and id(node.grad_fn) in self._results:
            return "the model's output"
        path = self._path_of(node)
        if path is None:
            return ""
        part = node.module
        if end != "in" and any(fnmatchcase(path, pattern) for pattern in patterns):
            return "kept whole by the model's whole_layers"
        if isinstance(part, nn.LayerNorm) and len(part.normalized_shape) != 1:
            return "it normalises over more than channels"
        if isinstance(part, _ConvNd) and self._is_both(node) and part.in_channels != part.out_channels:
            return "a grouped convolution that is not depthwise"
        shared = [p for p in ([part] if isinstance(part, nn.Parameter) else part.parameters()) if owners[id(p)] > 1]
        return "it shares its weight with another layer" if shared else ""

    def _find(self, position: Position) -> Position:
        parent = self._parent
        root = position
        while parent.setdefault(root, root) != root:
            root = parent[root]
        while parent[position] != root:
            parent[position], position = root, parent[position]
        return root

    def _join(self, a: Position, b: Position) -> None:
        first, second = self._find(a), self._find(b)
        if first != second:
            self._parent[second] = first
