"""How the final model does on the devices' own held-out shares: how far devices are from each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coordinator.reporting.markup import paragraph, table
from coordinator.reporting.plots.histogram import histogram
from coordinator.reporting.subject import Subject


def device_scores(subject: Subject) -> str:
    """Histogram, quantiles and levels as HTML; empty for a run without such scores."""
    found = subject.summary.get("device_evaluation")
    if not found or not found["devices"]:
        return ""
    name = "accuracy" if "accuracy" in found["metrics"] else "loss"
    spread = found["metrics"][name]
    few = f"; {len(found['too_few'])} with too few examples left out" if found["too_few"] else ""
    told = (
        f"{found['examples']} examples of {found['devices']} devices, none of them trained on{few}. The mean is "
        f"weighted by examples.{_tuning(found.get('fine_tuning'), name)}"
    )
    counts, edges = spread["histogram"]["devices"], spread["histogram"]["edges"]
    plot = histogram(counts, edges, caption=f"devices by {name} of the final model on their own examples", x_title=name)
    return f'<div class="charts">{plot}</div>{_metrics(found["metrics"])}{_levels(found["levels"])}' + paragraph(
        told, kind="what"
    )


def _metrics(metrics: Mapping[str, Any]) -> str:
    shares = list(next(iter(metrics.values()))["quantiles"])
    rows = [
        (
            name,
            f"{m['mean']:.4f}",
            *(f"{m['quantiles'][q]:.4f}" for q in shares),
            f"{m['lowest']['device']} {m['lowest']['value']:.4f}",
            f"{m['highest']['device']} {m['highest']['value']:.4f}",
        )
        for name, m in metrics.items()
    ]
    return table(("metric", "mean", *(f"{float(q):.0%}" for q in shares), "lowest", "highest"), rows)


def _levels(levels: Mapping[str, Any]) -> str:
    names = [name for name in next(iter(levels.values())) if name not in ("devices", "examples")]
    rows = [
        (level, str(row["devices"]), str(row["examples"]), *(f"{row[name]:.4f}" for name in names))
        for level, row in levels.items()
    ]
    return table(("level", "devices", "examples", *names), rows)


def _tuning(found: Mapping[str, Any] | None, name: str) -> str:
    if not found:
        return ""
    return (
        f" Fine-tuned for themselves {found['kept']} of {found['devices']} devices keep what they got: {name} "
        f"{found['before'][name]:.4f} before, {found['after'][name]:.4f} after."
    )
