"""Every operation of a traced program without an ONNX translation; :meth:`Translation.model` ends at the first."""

from __future__ import annotations

from typing import Any

from torch import fx

from edge.contracts.errors import ExportRefused
from export.formats.onnx_step.translation import Translation, Values
from export.formats.survey import Survey, is_gradient

REFUSED = "Refused"
"""Operator that stands in the graph where an operation was refused, so that what follows is translated too."""


def survey_translation(translation: Translation, survey: Survey) -> list[str]:
    """Translate operation by operation and note the refusals of all; the names of the outputs' values."""
    import export.formats.onnx_step.operator_table  # noqa: F401  (registers the operators)

    for node in translation.program.graph.graph.nodes:
        try:
            translation._visit(node)
        except ExportRefused as error:
            survey.refuse(error, is_gradient=is_gradient(node))
            translation._values[node] = _stand_in(translation, node)
    output = next(n for n in translation.program.graph.graph.nodes if n.op == "output")
    return [translation.value(item) for item in output.args[0]]


def _stand_in(translation: Translation, node: fx.Node) -> Values:
    operands = [translation._values[n] for n in node.all_input_nodes if isinstance(translation._values.get(n), str)]
    given: Any = node.meta.get("val")
    count = len(given) if isinstance(given, list | tuple) else 1
    names = translation.make.node_with_outputs(REFUSED, count, *map(str, operands), operation=node.name)
    return names if isinstance(given, list | tuple) else names[0]
