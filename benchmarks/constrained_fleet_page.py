"""The page of :mod:`benchmarks.constrained_fleet`: what each device trained below its ceiling; which claims hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LEAST_SHARE = 0.7
WHOLE = frozenset({"full", "keep 1"})
"""Levels that are the whole model."""

HEAD = """# {count} devices with {least} to {most} MB that the kernel enforces, {runtime}

    APPORTION_DATA=... python -m benchmarks.constrained_fleet runs/fleet --runtime {name} --rounds {rounds} \\
        --cache runs/exports --page PAGE.md

Real agents on one machine that others used: {processor}, {cores} cores, {system};
{runtime}, one thread, {date}. Each has a control group whose memory limit, without swap, is its budget for both
processes: `[[cohort.local]] ceiling = "budget"`. {rounds} rounds on shards of CIFAR-10 at 32x32, two batches each:
what is claimed is about memory, and nothing here says anything of accuracy. ResNet-20 has batches of 32, ResNet-18
of 8.

- *step*: plain, or in what other form the planner chose it; *trainer*: of which kind it was in every round.
- *peak*: supervisor's plus trainer's peak RSS, the largest over the rounds, MB of 2^20 bytes, and both apart; *share*:
  of the budget, in brackets where the budget is above what the whole model takes in the plain form (an agent without a
  budget trained it for that figure), or where the device trained the whole model in another form.
- *charged*: the most the kernel counted against the limit. It is less than the RSS: pages of libraries are charged
  to whoever read them first, here another device's group or none. A real device has no such help, so the RSS is
  what is held against the budget; the limit proves what is allocated.
- A share above 100 % (bold): a step took more than was predicted. The device is then never given that step again, and
  expects as much more of every other one.
- *kills*: processes that the kernel ended for the limit, counted by the group itself.
- A device that no cut fits in a round is left out of that round, with the reason; *rounds* counts those it trained
  in.
"""


def holds(result: Mapping[str, Any]) -> dict[str, bool]:
    """The claims and whether they hold."""
    devices = result["devices"]
    return {
        "no kills by the limit": result["kills"] == 0,
        "no peak above its budget": result["over_budget"] == 0,
        "every device takes part": all(row["rounds"] for row in devices),
        "in every round": all(row["rounds"] >= result["rounds"] for row in devices),
        f"every bound device uses {100 * LEAST_SHARE:.0f} %": all(
            row["share"] >= LEAST_SHARE for row in devices if is_bound(result, row)
        ),
    }


def is_bound(result: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether the budget kept the device from the whole model."""
    return row["bound"] and row["level_at_peak"] not in WHOLE


def table(result: Mapping[str, Any]) -> str:
    """One run as Markdown."""
    claims = "; ".join(f"{name}: {'yes' if held else '**no**'}" for name, held in holds(result).items())
    lines = [
        f"## {result['model']} under {result['method']}, batch {result['batch']}",
        "",
        f"The whole model takes {result['full_peak_mb']:.0f} MB. {claims}.",
        "",
        "| budget MB | cut at the peak | step | trainer | predicted MB | peak MB | trainer's | supervisor's | share "
        "| charged MB | rounds | kills |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["devices"]:
        share = f"{100 * row['share']:.0f} %" if is_bound(result, row) else f"({100 * row['share']:.0f} %)"
        share = f"**{share}**" if row["share"] > 1 else share
        lines.append(
            f"| {row['budget_mb']} | {row['level_at_peak']} | {row['form_at_peak']} | {', '.join(row['trainers'])} "
            f"| {row['predicted_mb']:.1f} | {row['peak_mb']:.1f} | {row['trainer_mb']:.1f} "
            f"| {row['supervisor_mb']:.1f} | {share} | {row['kernel_peak_mb']:.1f} | {row['rounds']} | {row['kills']} |"
        )
    refusals = [f"- {row['budget_mb']} MB, {text}" for row in result["devices"] for text in row["refusals"]]
    lines += ["", *refusals] if refusals else []
    return "\n".join(lines)


def head(result: Mapping[str, Any]) -> str:
    """The page's first lines, from what ``result`` says of machine, runtime and budgets."""
    budgets, found = [row["budget_mb"] for row in result["devices"]], result["host"]
    return HEAD.format(
        count=len(budgets),
        least=min(budgets),
        most=max(budgets),
        rounds=result["rounds"],
        name=result["devices"][0]["runtime"],
        **found,
    )


def page(results: Sequence[Mapping[str, Any]], missing: Sequence[str]) -> str:
    """The whole page; ``missing`` are runs that there is no result of."""
    parts = [*map(head, results[:1]), *(table(result) + "\n" for result in results)]
    if missing:
        parts.append(f"Not measured: {', '.join(missing)}.\n")
    return "\n".join(parts)
