"""The order in which ONNX Runtime executes a graph in its default setting; the order of the file does not decide it."""

from __future__ import annotations

import onnx


def in_execution_order(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of ``model`` with its nodes in the order of execution.

    ONNX Runtime takes the nodes whose outputs nobody reads, the last one in the file first, and before a node executes
    its operands, again the last one in the file first. Fusions move single nodes; the order was compared with profiles
    of ResNet-20, Conv-2 and a ViT.
    """
    nodes = list(model.graph.node)
    producer = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    operands = [sorted({producer[n] for n in node.input if n in producer}) for node in nodes]
    read = {i for group in operands for i in group}
    stack = [(i, False) for i in range(len(nodes)) if i not in read]
    seen: set[int] = set()
    order = []
    while stack:
        i, is_done = stack.pop()
        if is_done:
            order.append(i)
        elif i not in seen:
            seen.add(i)
            stack.append((i, True))
            stack += [(j, False) for j in operands[i] if j not in seen]
    ordered = onnx.ModelProto()
    ordered.CopyFrom(model)
    del ordered.graph.node[:]
    ordered.graph.node.extend(nodes[i] for i in order)
    return ordered
