"""Programs of a step as flat ATen graphs: ``train``, ``eval``, ``stats``; traced with only the batch dimension dynamic.

The graph's inputs and outputs are named tensors; nothing here knows a runtime. Two passes: the step with its
gradients first, then functionalisation and decomposition, because the second one needs mutations spelled out.

What only tracing needs of torch is imported by what traces: it brings SymPy, and a simulation traces nothing.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx.traceback as fx_traceback
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.func import functionalize
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from edge.contracts.errors import ApportionError, ExportRefused
from edge.contracts.tensors import BATCH, TensorSpec
from export.aliases import drop_aliases
from export.backward_marks import BackwardMarks, backward_layer
from export.decompositions import decomposition_table

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

ATEN = torch.ops.aten
_FEW = 2
"""Examples in a run whose results nobody reads."""
MODULE_ITSELF = "(the module itself)"
"""In place of a layer's path: what the module's own forward does."""


@dataclass(frozen=True)
class StepInput:
    """One input of a program: its spec and an example value at the tracing batch size."""

    spec: TensorSpec
    example: Tensor


@dataclass
class Capture:
    """A traced program.

    Attributes:
        graph: functional ATen graph; every node's ``meta['val']`` is its fake tensor, ``meta['nn_module_stack']``
            the layer it came from (forward nodes only).
        inputs: specs in placeholder order.
        outputs: names in output order (``loss``, ``next:<tensor>``, ...).
        hidden: names in output order, after ``outputs``, of values that exist in the graph but are not its outputs.
    """

    graph: fx.GraphModule
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    hidden: tuple[str, ...]


StepFunction = Callable[[dict[str, Tensor]], tuple[dict[str, Tensor], dict[str, Tensor]]]
"""Named inputs to (outputs, hidden values), both in the order in which the graph is to give them."""


def capture(
    function: StepFunction, inputs: Sequence[StepInput], module: nn.Module, whole: frozenset[Any] = frozenset()
) -> Capture:
    """Trace ``function`` on the examples of ``inputs``.

    Args:
        whole: operators that are not written out in simpler ones, beside those that never are.

    Raises:
        ExportRefused: naming the layer whose shapes or control flow depend on data, or that fixes the batch size.
    """
    names = [i.spec.name for i in inputs]
    order: dict[str, tuple[str, ...]] = {}

    def flat(*values: Tensor) -> list[Tensor]:
        outputs, hidden = function(dict(zip(names, values, strict=True)))
        order["outputs"], order["hidden"] = tuple(outputs), tuple(hidden)
        return [*outputs.values(), *hidden.values()]

    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    shape_env = ShapeEnv()
    buffers = dict(module.named_buffers())
    fake_mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)
    fakes = [_fake(fake_mode, item) for item in inputs]
    with ExitStack() as stack:
        stack.enter_context(_no_collection())
        stack.enter_context(_tracing_state())
        layers = stack.enter_context(_layer_names(module))
        joint = _joint(flat, fakes, layers)
        if _replaced(module, buffers) and _is_filled(flat, inputs, module, buffers):
            buffers = dict(module.named_buffers())
            joint = _joint(flat, fakes, layers)
        _refuse_fixed_batch(shape_env)
        _refuse_kept_state(joint, module, buffers)
        _spell_out_norm_updates(joint)
        interpret = fx.Interpreter(joint).run
        graph = make_fx(
            functionalize(interpret),
            decomposition_table=decomposition_table(whole),
            tracing_mode="fake",
            _allow_non_fake_inputs=True,
        )(*fakes)
    _drop_stores(graph, inputs)
    drop_aliases(graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return Capture(graph, tuple(i.spec for i in inputs), order["outputs"], order["hidden"])


def _joint(flat: Callable[..., list[Tensor]], fakes: Sequence[Tensor], layers: Sequence[str]) -> fx.GraphModule:
    """The function with its gradients as one graph, mutations and all."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    try:
        return make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*fakes)
    except (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode) as error:
        raise ExportRefused(
            _innermost(layers),
            f"its shapes or control flow depend on the data ({str(error).splitlines()[0][:120]})",
            instead="operations of fixed shape, such as torch.where",
        ) from error
    except ApportionError:
        raise
    except Exception as error:
        if not layers:
            raise  # none of the module's own code was running
        # It runs on numbers (export.forward_check), so it does something that only numbers can be asked for.
        text = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}" if str(error) else type(error).__name__
        raise ExportRefused(
            _innermost(layers), f"it cannot be traced ({text})", instead="torch operations on tensors"
        ) from error


def layer_of(node: fx.Node) -> str:
    """Path of the layer whose forward or backward pass ``node`` is part of; else that of the nearest node it reads."""
    seen, front = {node}, [node]
    while front:
        current = front.pop(0)
        stack, path = current.meta.get("nn_module_stack"), backward_layer(current)
        if stack or path is not None:
            return (next(reversed(stack)) if stack else path) or MODULE_ITSELF
        for parent in current.all_input_nodes:
            if parent not in seen:
                seen.add(parent)
                front.append(parent)
    return MODULE_ITSELF


def _fake(mode: FakeTensorMode, item: StepInput) -> Tensor:
    """A fake of the example; a ``batch`` dimension is one shared symbol, every other one its number."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    sizes = [DimDynamic.DUCK if size == BATCH else DimDynamic.STATIC for size in item.spec.shape]
    return mode.from_tensor(item.example, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without the collector of circular garbage, which looks through millions of live nodes: a tenth of a trace."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _tracing_state() -> Iterator[None]:
    """Kernels chosen for tracing: plain ATen ones, attention spelled out, no fused inference paths."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch.nn.attention import SDPBackend, sdpa_kernel

    fast_path = torch.backends.mha.get_fastpath_enabled()
    # The flags() context of torch.backends.mkldnn warns about other devices, so the switch is set directly.
    onednn = torch._C._get_mkldnn_enabled()
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        # Composite operations in their Python form: the C++ ones ask for concrete sizes and would fix the batch.
        stack.enter_context(enable_python_dispatcher())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        torch.backends.mha.set_fastpath_enabled(False)
        torch._C._set_mkldnn_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)
            torch._C._set_mkldnn_enabled(onednn)


@contextmanager
def _layer_names(module: nn.Module) -> Iterator[list[str]]:
    """The paths of the layers being run, innermost last; every node traced meanwhile is marked with them.

    Backward nodes are marked with the layer they belong to, see :mod:`export.backward_marks`.
    """
    stack: list[str] = []
    outer: list[Any] = []
    starts: list[int] = []
    marks = BackwardMarks()
    handles = []
    meta = fx_traceback.current_meta

    for name, part in module.named_modules():

        def enter(_part: nn.Module, _args: object, path: str = name, kind: str = type(part).__name__) -> None:
            stack.append(path)
            starts.append(marks.position())
            outer.append(meta.get("nn_module_stack"))
            meta["nn_module_stack"] = {**(outer[-1] or {}), path: (path, kind)}

        def leave(_part: nn.Module, _args: object, out: object) -> None:
            marks.add(stack.pop(), starts.pop(), out)
            previous = outer.pop()
            if previous is None:
                meta.pop("nn_module_stack", None)
            else:
                meta["nn_module_stack"] = previous

        handles += [part.register_forward_pre_hook(enter), part.register_forward_hook(leave)]
    try:
        with fx_traceback.preserve_node_meta():
            yield stack
    finally:
        for handle in handles:
            handle.remove()


def _spell_out_norm_updates(joint: fx.GraphModule) -> None:
    """Give batch norms the overload whose schema says that it writes the running statistics.

    ``native_batch_norm`` writes them without saying so, and functionalisation then loses the update.
    """
    for node in joint.graph.nodes:
        if node.target is ATEN.native_batch_norm.default:
            if node.args[3] is None:
                node.target = ATEN._native_batch_norm_legit.no_stats
                node.args = (*node.args[:3], *node.args[5:])
            else:
                node.target = ATEN._native_batch_norm_legit.default
    joint.recompile()


def _innermost(layers: Sequence[str]) -> str:
    return (layers[-1] if layers else "") or MODULE_ITSELF


def _refuse_fixed_batch(shape_env: ShapeEnv) -> None:
    fixed = [symbol for symbol, value in shape_env.replacements.items() if value.is_number]
    if fixed:
        raise ExportRefused(
            MODULE_ITSELF,
            f"it runs only at batch size {shape_env.replacements[fixed[0]]}",
            instead="x.shape[0] or -1 in place of the number",
        )


def _replaced(module: nn.Module, buffers: Mapping[str, Tensor]) -> list[str]:
    """Names of buffers that are no longer the tensors they were."""
    return [name for name, value in module.named_buffers() if buffers.get(name) is not value]


def _is_filled(
    flat: Callable[..., list[Tensor]], inputs: Sequence[StepInput], module: nn.Module, buffers: Mapping[str, Tensor]
) -> bool:
    """Whether the buffers that a first run fills, such as position tables, are then left alone; they are filled now."""
    for name, part in module.named_modules():
        for key in part._buffers:
            path = f"{name}.{key}" if name else key
            if path in buffers:
                part._buffers[key] = buffers[path]
    for _ in range(2):
        before = dict(module.named_buffers())
        shapes = [[_FEW if size == BATCH else size for size in item.spec.shape] for item in inputs]
        flat(*(torch.zeros(shape, dtype=i.example.dtype) for shape, i in zip(shapes, inputs, strict=True)))
    return not _replaced(module, before)


def _refuse_kept_state(joint: fx.GraphModule, module: nn.Module, buffers: Mapping[str, Tensor]) -> None:
    """Buffers that are constants of the graph must not change from step to step."""
    advice = "batch norm's running statistics, or no state between steps"
    for name in _replaced(module, buffers):
        raise ExportRefused(name.rpartition(".")[0], f"it replaces its buffer '{name}' in every step", instead=advice)
    names = {id(value): name for name, value in module.named_buffers()}
    for node in joint.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        for value in filter(_is_constant, [*node.args[:1], node.kwargs.get("out")]):
            name = names.get(id(getattr(joint, str(value.target))), "")
            layer = name.rpartition(".")[0] if name else layer_of(node)
            what = f"its buffer '{name}'" if name else "one of its buffers"
            if _is_spectral(module.get_submodule(layer) if name else None):
                advice = "weight norm, which keeps nothing between steps"
            raise ExportRefused(layer, f"it writes {what} in place in every step", instead=advice)


def _is_spectral(part: nn.Module | None) -> bool:
    """Whether the layer is divided by its largest singular value, which it follows from step to step."""
    if part is None:
        return False
    return isinstance(part, _SpectralNorm) or any(
        isinstance(hook, SpectralNorm) for hook in part._forward_pre_hooks.values()
    )


def _is_constant(value: Any) -> bool:
    return isinstance(value, fx.Node) and value.op == "get_attr"


def _drop_stores(graph: fx.GraphModule, inputs: Sequence[StepInput]) -> None:
    """Remove the final writes into inputs: running statistics are outputs, and nothing else may be written."""
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    by_node = dict(zip(placeholders, inputs, strict=True))
    for node in list(graph.graph.nodes):
        if node.target is ATEN.copy_.default and node.args[0] in by_node:
            spec = by_node[node.args[0]].spec
            if spec.role != "buffer":
                layer, _, name = spec.name.rpartition(".")
                raise ExportRefused(
                    layer,
                    f"it writes '{name}' ({spec.role}) in place",
                    instead="a new tensor in place of the written one",
                )
            node.replace_all_uses_with(node.args[1])
            graph.graph.erase_node(node)
