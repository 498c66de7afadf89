"""The page of :mod:`benchmarks.constrained_fleet`: what each device trained below its ceiling; which claims hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LEAST_SHARE = 0.7

HEAD = """# Twelve devices with 96 to 512 MB that the kernel enforces

    APPORTION_DATA=... python -m benchmarks.constrained_fleet runs/fleet --cache runs/exports --page PAGE.md

Real agents on one x86-64 machine (2 cores that others used), Debian 12, ONNX Runtime 1.31.1, one thread,
2026-11-20. Each has a control group (version 1) whose memory limit, without swap, is its budget for both processes:
`[[cohort.local]] ceiling = "budget"`. Ten rounds on shards of CIFAR-10 at 32x32, two batches each: what is claimed
is about memory, and nothing here says anything of accuracy. ResNet-20 has batches of 32, ResNet-18 of 8.

- *peak*: supervisor's plus trainer's peak RSS, the largest over the rounds, MB of 2^20 bytes; *share*: of the
  budget, in brackets where the budget is above what the whole model takes (an agent without a budget trained it for
  that figure).
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
            row["share"] >= LEAST_SHARE for row in devices if row["bound"]
        ),
    }


def table(result: Mapping[str, Any]) -> str:
    """One run as Markdown."""
    claims = "; ".join(f"{name}: {'yes' if held else '**no**'}" for name, held in holds(result).items())
    lines = [
        f"## {result['model']} under {result['method']}, batch {result['batch']}",
        "",
        f"The whole model takes {result['full_peak_mb']:.0f} MB. {claims}.",
        "",
        "| budget MB | cut at the peak | predicted MB | peak MB | share | charged MB | rounds | kills |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in result["devices"]:
        share = f"{100 * row['share']:.0f} %" if row["bound"] else f"({100 * row['share']:.0f} %)"
        share = f"**{share}**" if row["share"] > 1 else share
        lines.append(
            f"| {row['budget_mb']} | {row['level_at_peak']} | {row['predicted_mb']:.0f} | {row['peak_mb']:.0f} "
            f"| {share} | {row['kernel_peak_mb']:.0f} | {row['rounds']} | {row['kills']} |"
        )
    return "\n".join(lines)


def page(results: Sequence[Mapping[str, Any]], missing: Sequence[str]) -> str:
    """The whole page; ``missing`` are runs that there is no result of."""
    parts = [HEAD, *(table(result) + "\n" for result in results)]
    if missing:
        parts.append(f"Not measured: {', '.join(missing)}.\n")
    return "\n".join(parts)
