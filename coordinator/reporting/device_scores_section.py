"""The part of ``report.html`` about the devices' own held-out shares: how far devices are from each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT, FLOOR = 640, 180, 150


def device_scores_section(summary: Mapping[str, Any]) -> str:
    """Histogram, quantiles and levels as HTML; empty for a run without such scores."""
    found = summary.get("device_evaluation")
    if not found or not found["devices"]:
        return ""
    name = "accuracy" if "accuracy" in found["metrics"] else "loss"
    spread = found["metrics"][name]
    few = f"; {len(found['too_few'])} with too few examples left out" if found["too_few"] else ""
    return (
        f"<h2>On the devices' own held-out examples</h2><div class='charts'>{_bars(spread['histogram'], name)}</div>"
        f'<div class="wide">{_metrics(found["metrics"])}</div><div class="wide">{_levels(found["levels"])}</div>'
        f"<p class='what'>{found['examples']} examples of {found['devices']} devices, none of them trained on{few}. "
        f"The mean is weighted by examples.{_tuning(found.get('fine_tuning'), name)}</p>"
    )


def _bars(histogram: Mapping[str, Sequence[float]], name: str) -> str:
    counts, edges = histogram["devices"], histogram["edges"]
    wide, most = WIDTH / len(counts), max(counts)
    bars = "".join(
        f'<rect x="{i * wide + 2:.1f}" y="{FLOOR - 130 * count / most:.1f}" width="{wide - 4:.1f}" '
        f'height="{130 * count / most:.1f}" fill="var(--one)"><title>{edges[i]:.3f} to {edges[i + 1]:.3f}: '
        f"{int(count)} devices</title></rect>"
        for i, count in enumerate(counts)
    )
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="devices by {escape(name)}">{bars}'
        f'<path d="M0 {FLOOR}H{WIDTH}" stroke="var(--line)"/><text x="0" y="{HEIGHT - 10}">{edges[0]:.2f}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 10}" text-anchor="end">{edges[-1]:.2f}</text></svg>'
        f"<figcaption>devices by {escape(name)} of the final model on their own held-out examples</figcaption></figure>"
    )


def _metrics(metrics: Mapping[str, Any]) -> str:
    shares = list(next(iter(metrics.values()))["quantiles"])
    head = "".join(f"<th>{float(q):.0%}</th>" for q in shares)
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{m['mean']:.4f}</td>"
        + "".join(f"<td>{m['quantiles'][q]:.4f}</td>" for q in shares)
        + f"<td>{escape(m['lowest']['device'])} {m['lowest']['value']:.4f}</td>"
        + f"<td>{escape(m['highest']['device'])} {m['highest']['value']:.4f}</td></tr>"
        for name, m in metrics.items()
    )
    return (
        f"<table><thead><tr><th>metric</th><th>mean</th>{head}<th>lowest</th><th>highest</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )


def _levels(levels: Mapping[str, Any]) -> str:
    names = [name for name in next(iter(levels.values())) if name not in ("devices", "examples")]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = "".join(
        f"<tr><td>{escape(level)}</td><td>{row['devices']}</td><td>{row['examples']}</td>"
        + "".join(f"<td>{row[name]:.4f}</td>" for name in names)
        + "</tr>"
        for level, row in levels.items()
    )
    heads = f"<th>cut</th><th>devices</th><th>examples</th>{head}"
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _tuning(found: Mapping[str, Any] | None, name: str) -> str:
    if not found:
        return ""
    return (
        f" Fine-tuned for themselves {found['kept']} of {found['devices']} devices keep what they got: {escape(name)} "
        f"{found['before'][name]:.4f} before, {found['after'][name]:.4f} after."
    )
