"""A traced program in ExecuTorch's edge form, its graph edited where it is.

ExecuTorch's ``to_edge`` traces a program once for its decompositions and once for each of five passes, which takes
half of an export. What comes out of our rewrites needs little of this: operators are named by their edge forms, views
by their copies, numbers become tensors. A program in which a pass has more to do goes through ``to_edge`` itself; bytes
are the same either way (``tests/export/executorch/test_edge_form.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch._export.passes.replace_view_ops_with_view_copy_ops_pass import get_view_copy_of_view_op
from torch._ops import HigherOrderOperator, OpOverload
from torch._prims_common import is_contiguous_or_false
from torch.export import ExportedProgram

_ATEN = torch.ops.aten
_PROMOTED = frozenset(
    {
        _ATEN.add.Tensor,
        _ATEN.mul.Tensor,
        _ATEN.sub.Tensor,
        _ATEN.div.Tensor,
        _ATEN.div.Tensor_mode,
        _ATEN.minimum.default,
    }
)
"""Operators whose operands ExecuTorch brings to one type, with a copy of those that are of another."""


def edge_manager(exported: Any) -> Any:
    """ExecuTorch's manager of an exported program in edge form; ``exported`` is used up.

    Args:
        exported: a program as :func:`torch.export.export` gives it, without in-place operators.
    """
    from executorch.exir import EdgeCompileConfig, EdgeProgramManager, to_edge
    from executorch.exir.program._program import _default_decomposition_table

    config = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True)
    table = _default_decomposition_table()
    _spell_out(exported.graph_module.graph)
    if any(_is_composed(n.target, table) for n in _operations(exported.graph_module.graph)):
        exported = exported.run_decompositions(table)
    if _needs_passes(exported.graph_module):
        return to_edge(exported, compile_config=config)
    return EdgeProgramManager({"forward": _in_place(exported, config)}, None, config)


def _operations(graph: fx.Graph) -> Iterator[fx.Node]:
    return (n for n in graph.nodes if n.op == "call_function" and isinstance(n.target, OpOverload))


def _is_composed(operator: OpOverload, table: Mapping[OpOverload, Any]) -> bool:
    return operator is not _ATEN.sym_size.int and (operator in table or operator._can_decompose())


def _spell_out(graph: fx.Graph) -> None:
    """The two operators of nearly every program that ExecuTorch has under another name: ``reshape`` and ``arange``."""
    for node in _operations(graph):
        if node.target is _ATEN.reshape.default:
            # Of a contiguous tensor a reshape is a view of it.
            if is_contiguous_or_false(node.args[0].meta["val"]):
                node.target = _ATEN.view.default
        elif node.target is _ATEN.arange.default:
            node.target, node.args = _ATEN.arange.start_step, (0, *node.args)


def _needs_passes(module: fx.GraphModule) -> bool:
    """Whether a pass of ExecuTorch has more to do than :func:`_in_place` does."""
    for node in module.graph.nodes:
        if node.op == "call_module" or isinstance(node.target, HigherOrderOperator):
            return True
    return any(
        _is_written(node.target) or _is_of_symbol(node) or _is_promoted(node) for node in _operations(module.graph)
    )


def _is_written(operator: OpOverload) -> bool:
    return any(a.alias_info is not None and a.alias_info.is_write for a in operator._schema.arguments)


def _tensor_arguments(node: fx.Node) -> Iterator[tuple[int | str, Any]]:
    """Place, or name, and value of every argument that the operator has as one tensor."""
    for place, argument in enumerate(node.target._schema.arguments):
        if not isinstance(argument.type, torch.TensorType):
            continue
        if argument.name in node.kwargs:
            yield argument.name, node.kwargs[argument.name]
        elif not argument.kwarg_only and place < len(node.args):
            yield place, node.args[place]


def _is_of_symbol(node: fx.Node) -> bool:
    """Whether a size is given where the operator has a tensor."""
    return any(isinstance(v, fx.Node) and not isinstance(v.meta["val"], Tensor) for _, v in _tensor_arguments(node))


def _is_promoted(node: fx.Node) -> bool:
    """Whether an operand would be copied into another type."""
    if node.target not in _PROMOTED or len(node.args) < 2:
        return False
    types = {v.meta["val"].dtype if isinstance(v, fx.Node) else torch.tensor(v).dtype for v in node.args}
    is_quotient = node.target is _ATEN.div.Tensor or node.kwargs.get("rounding_mode", "") is None
    return len(types) > 1 or (is_quotient and not next(iter(types)).is_floating_point)


def _in_place(exported: Any, config: Any) -> Any:
    from executorch.exir.passes.prune_empty_tensors_pass import PruneEmptyTensorsPass
    from executorch.exir.passes.remove_graph_asserts_pass import RemoveNonCoreAtenOpGraphAssertsPass
    from executorch.exir.passes.remove_noop_pass import RemoveNoopPass, RemoveToCopyPass
    from executorch.exir.passes.remove_unused_parameters_pass import remove_unused_parameters_pass
    from executorch.exir.passes.replace_aten_with_edge_pass import aten_to_edge, should_lower_to_edge
    from executorch.exir.program._program import _get_updated_graph_signature, lift_constant_tensor_pass
    from executorch.exir.verification.verifier import EXIREdgeDialectVerifier

    exported = remove_unused_parameters_pass(exported)
    module = exported.graph_module
    RemoveNonCoreAtenOpGraphAssertsPass()(module)
    for node in _operations(module.graph):
        node.target = get_view_copy_of_view_op(node.target._schema) or node.target
        if node.target is _ATEN._unsafe_view.default:
            node.target = _ATEN.view_copy.default
    _lift_numbers(module)
    for edit in (RemoveNoopPass(), PruneEmptyTensorsPass(), RemoveToCopyPass()):
        edit(module)
    for node in _operations(module.graph):
        if should_lower_to_edge(node.target):
            node.target = aten_to_edge(node.target)
    verifier = EXIREdgeDialectVerifier(edge_compile_config=config, class_only=True)
    edge = ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=_get_updated_graph_signature(exported.graph_signature, module),  # names that changed
        state_dict=exported.state_dict,
        range_constraints=exported.range_constraints,
        module_call_graph=exported.module_call_graph,
        example_inputs=exported.example_inputs,
        constants=exported.constants,
        verifiers=[verifier],
    )
    edge = lift_constant_tensor_pass(edge)
    edge.graph_module.graph.eliminate_dead_code()
    edge.graph_module.recompile()
    return edge


def _lift_numbers(module: fx.GraphModule) -> None:
    """Numbers that stand where an operator has a tensor become constants."""
    count = 0
    for node in list(_operations(module.graph)):
        for place, value in list(_tensor_arguments(node)):
            if not isinstance(value, bool | int | float):
                continue
            name = f"_tensor_constant{count}"
            count += 1
            constant = torch.tensor(value)
            setattr(module, name, constant)
            with module.graph.inserting_before(node):
                attribute = module.graph.get_attr(name)
            attribute.meta["val"] = constant
            if isinstance(place, str):
                node.update_kwarg(place, attribute)
            else:
                node.update_arg(place, attribute)
