"""``report.html`` of a run: one self-contained page, no script, no request; curves as SVG, devices as a table.

Everything on it comes from ``summary.json`` and the committed rounds' metrics; nothing is computed anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from coordinator.planning.planner import MB
from coordinator.reporting.device_scores_section import device_scores_section

WIDTH, HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 16, 16, 32

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2128; --soft: #59636e; --line: #d1d9e0; --page: #ffffff; --card: #f6f8fa;
        --one: #0969da; --two: #bc4c00; --over: #cf222e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --page: #0d1117; --card: #151b23;
          --one: #4493f8; --two: #f0883e; --over: #f85149; } }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem; background: var(--page); color: var(--ink);
       font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p.what { color: var(--soft); margin: .2rem 0 1.2rem; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; margin: 0; }
dl div { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .5rem .75rem; }
dt { color: var(--soft); font-size: .8rem; } dd { margin: 0; font-size: 1.15rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .6rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, th.text, td.text { text-align: left; } th { color: var(--soft); font-weight: 600; }
td.over { color: var(--over); font-weight: 600; }
figure { margin: 0; } figcaption { color: var(--soft); font-size: .85rem; }
svg { width: 100%; max-width: 640px; height: auto; display: block; } svg text { fill: var(--soft); font-size: 12px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1.5rem; }
"""


def report_page(
    name: str, method: str, model: str, summary: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]
) -> str:
    """The page as text.

    Args:
        summary: the values of ``summary.json``.
        rounds: metrics of the committed training rounds, in order.
    """
    losses = [(i + 1, r["train_loss"]) for i, r in enumerate(rounds) if r.get("train_loss") == r.get("train_loss")]
    metric = str(summary.get("metric", "accuracy"))
    scores = [(i + 1, r["evaluation"]["server"][metric]) for i, r in enumerate(rounds) if r.get("evaluation")]
    charts = "".join(
        _figure(points, caption, colour)
        for points, caption, colour in (
            (scores, f"{metric} of the global model on held-out data, by round", "--one"),
            (losses, "mean training loss on the devices, by round", "--two"),
        )
        if points
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(name)}: federation report</title><style>{_STYLE}</style></head><body>
<h1>{escape(name)}</h1>
<p class="what">{escape(model)} under {escape(method)}, {summary["rounds"]} rounds on {summary["devices"]} devices</p>
<dl>{"".join(_fact(term, value) for term, value in _facts(summary))}</dl>
<h2>Training</h2><div class="charts">{charts}</div>
{_ranks(rounds)}{device_scores_section(summary)}
<h2>Devices</h2><div class="wide">{_devices(summary["device_table"])}</div>
<p class="what">Memory in MB of 2^20 bytes, supervisor and trainer together; the budget holds for their sum.</p>
<h2>Evaluated models</h2><div class="wide">{_models(summary["evaluation"])}</div>
</body></html>
"""


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (str(summary.get("metric", "accuracy")), f"{summary['score' if 'metric' in summary else 'accuracy']:.4f}"),
        ("rounds", str(summary["rounds"])),
        ("devices", str(summary["devices"])),
        ("different cuts", str(summary["levels"])),
        ("wall time", f"{summary['wall_s']:.1f} s"),
        ("sent to devices", f"{summary['bytes_down'] / 1e6:.1f} MB"),
        ("sent by devices", f"{summary['bytes_up'] / 1e6:.1f} MB"),
        ("reports over budget", str(summary["over_budget"])),
    ]


def _fact(term: str, value: str) -> str:
    return f"<div><dt>{escape(term)}</dt><dd>{escape(value)}</dd></div>"


def _figure(points: Sequence[tuple[int, float]], caption: str, colour: str) -> str:
    """A line chart with the value of its last point; the axes span the data."""
    last_round = max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    if high == low:
        low, high = low - 0.5, high + 0.5

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - 1) / max(1, last_round - 1)
        up = (y - low) / (high - low)
        return _LEFT + across * (WIDTH - _LEFT - _RIGHT), HEIGHT - _BOTTOM - up * (HEIGHT - _TOP - _BOTTOM)

    path = " ".join(f"{'M' if i == 0 else 'L'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(at(*p) for p in points))
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="var({colour})"><title>round {n}: {value:.4f}</title></circle>'
        for (n, value), (x, y) in zip(points, (at(*p) for p in points), strict=True)
    )
    floor = HEIGHT - _BOTTOM
    return f"""<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(caption)}">
<path d="M{_LEFT} {_TOP}V{floor}H{WIDTH - _RIGHT}" fill="none" stroke="var(--line)"/>
<text x="{_LEFT - 6}" y="{_TOP + 10}" text-anchor="end">{high:.2f}</text>
<text x="{_LEFT - 6}" y="{floor}" text-anchor="end">{low:.2f}</text>
<text x="{_LEFT}" y="{HEIGHT - 10}">1</text>
<text x="{WIDTH - _RIGHT}" y="{HEIGHT - 10}" text-anchor="end">{last_round}</text>
<path d="{path}" fill="none" stroke="var({colour})" stroke-width="2"/>{dots}</svg>
<figcaption>{escape(caption)}; last {points[-1][1]:.4f}</figcaption></figure>"""


def _devices(table: Sequence[Mapping[str, Any]]) -> str:
    headings = ("cut", "runtime", "threads", "budget", "predicted", "measured", "step ms", "MB down", "MB up", "rounds")
    head = "<th>device</th>" + "".join(
        f'<th class="text">{h}</th>' if h in ("cut", "runtime") else f"<th>{h}</th>" for h in headings
    )
    rows = []
    for row in table:
        budget = f"{row['budget_bytes'] / MB:.0f}" if row["budget_bytes"] else "no limit"
        cut = row["level"] if row["form"] == "plain" else f"{row['level']}, {row['form']}"
        over = ' class="over"' if row["over_budget"] else ""
        rows.append(
            f'<tr><td>{escape(row["device"])}</td><td class="text">{escape(cut)}</td>'
            f'<td class="text">{escape(row["runtime"])}</td><td>{row["threads"] or "-"}</td><td>{budget}</td>'
            f"<td>{row['predicted_peak_bytes'] / MB:.1f}</td><td{over}>{row['measured_peak_bytes'] / MB:.1f}</td>"
            f"<td>{row['step_ms']:.1f}</td><td>{row['bytes_down'] / 1e6:.1f}</td><td>{row['bytes_up'] / 1e6:.1f}</td>"
            f"<td>{row['rounds']}</td></tr>"
        )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _ranks(rounds: Sequence[Mapping[str, Any]]) -> str:
    """Effective ranks, where the rounds have them: their mean as a curve, every layer's first and last."""
    known = [(i + 1, r["effective_rank"]) for i, r in enumerate(rounds) if r.get("effective_rank")]
    if not known:
        return ""
    means = [(number, sum(ranks.values()) / len(ranks)) for number, ranks in known]
    (first, before), (last, after) = known[0], known[-1]
    rows = "".join(
        f"<tr><td>{escape(path)}</td><td>{before[path]:.1f}</td><td>{after[path]:.1f}</td></tr>" for path in after
    )
    chart = _figure(means, "mean effective rank of the decomposed layers, by round", "--one")
    return (
        f'<h2>Effective rank</h2><div class="charts">{chart}</div><div class="wide"><table><thead><tr><th>layer</th>'
        f"<th>round {first}</th><th>round {last}</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _models(evaluation: Mapping[str, Any]) -> str:
    models = evaluation["models"]
    names = [name for name in next(iter(models.values()), ("accuracy", "loss")) if name != "examples"]
    rows = "".join(
        f"<tr><td>{escape(label)}</td>{''.join(f'<td>{values[name]:.4f}</td>' for name in names)}</tr>"
        for label, values in models.items()
    )
    return (
        f"<table><thead><tr><th>model</th>{''.join(f'<th>{escape(name)}</th>' for name in names)}</tr></thead>"
        f"<tbody>{rows}</tbody></table><p class='what'>Normalisation: {escape(evaluation['norm'])} statistics, "
        f"batch {evaluation['batch']}. {_final_file(evaluation)}</p>"
    )


def _final_file(evaluation: Mapping[str, Any]) -> str:
    if "onnx_max_error" in evaluation:
        return (
            f"final.onnx: predictions within {evaluation['onnx_max_error']:.1e} of those of final.safetensors, "
            "relative to the largest."
        )
    equal = "equal" if evaluation["onnx_predictions_equal"] else "NOT equal"
    return f"final.onnx: accuracy {evaluation['onnx_accuracy']:.4f}, predictions {equal} to those of final.safetensors."
