"""The final model and every capacity level's, scored after the last round."""

from __future__ import annotations

from typing import Any

from coordinator.reporting.markup import paragraph, table
from coordinator.reporting.subject import Subject, model_title


def models(subject: Subject) -> str:
    """A row for each evaluated model; empty before the end."""
    evaluation: dict[str, Any] = dict(subject.summary.get("evaluation", {}))
    found = evaluation.get("models", {})
    if not found:
        return ""
    names = [name for name in next(iter(found.values())) if name != "examples"]
    rows = [(model_title(label), *(_number(values.get(name)) for name in names)) for label, values in found.items()]
    examples = next(iter(found.values())).get("examples")
    on = f"On {examples:,} held-out examples. " if examples else ""
    told = f"{on}Batch norm, where there is one, used {evaluation.get('norm')} statistics. {_final_file(evaluation)}"
    return table(("model", *names), rows) + paragraph(told, kind="what")


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else "no number"


def _final_file(evaluation: dict[str, Any]) -> str:
    if "onnx_max_error" in evaluation:
        return (
            f"final.onnx: predictions within {evaluation['onnx_max_error']:.1e} of those of final.safetensors, "
            "relative to the largest."
        )
    if "onnx_accuracy" not in evaluation:
        return ""
    equal = "equal" if evaluation["onnx_predictions_equal"] else "NOT equal"
    return f"final.onnx: accuracy {evaluation['onnx_accuracy']:.4f}, predictions {equal} to those of final.safetensors."
