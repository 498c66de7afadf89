"""The results of :mod:`benchmarks.orderings` as Markdown: means, deviations over seeds, and which orderings held."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.comparisons import SEEDS, TARGETS, Comparison, Entry

Run = Mapping[str, Any]
Results = Mapping[tuple[str, str, int], Run]


def page(comparisons: Sequence[Comparison], results: Results) -> str:
    """A section for each comparison that has a run."""
    sections = []
    for comparison in comparisons:
        runs = {entry.label: runs_of(comparison, entry, results) for entry in comparison.entries}
        if any(runs.values()):
            tables = timed_tables(comparison, runs) if comparison.is_timed else scored_tables(comparison, runs)
            sections.append(f"## {comparison.title}\n\n{tables}")
    return "\n\n".join(sections) + "\n"


def runs_of(comparison: Comparison, entry: Entry, results: Results) -> dict[int, Run]:
    """The runs of a method that are there, by seed."""
    found = {seed: results.get((comparison.name, entry.label, seed)) for seed in SEEDS}
    return {seed: run for seed, run in found.items() if run is not None}


# final accuracies


def scored_tables(comparison: Comparison, runs: Mapping[str, Mapping[int, Run]]) -> str:
    """Accuracies after the last round and at equal bytes, then the claims."""
    lines = [
        "| method | model | accuracy, % | seeds | at equal bytes | other models | MB down | MB up | simulated s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for entry in comparison.entries:
        mine = runs[entry.label]
        if not mine:
            lines.append(f"| {entry.label} | {entry.model} | not run | | | | | | |")
            continue
        finals = [accuracy(run, entry.model) for run in mine.values()]
        budgets = {seed: equal_bytes(runs, seed) for seed in mine}
        within = [accuracy_within(run, entry.model, budgets[seed]) for seed, run in mine.items()]
        lines.append(
            f"| {entry.label} | {entry.model} | **{percent(finals)}** | {', '.join(f'{100 * a:.1f}' for a in finals)} "
            f"| {percent([a for a in within if a is not None])} | {_others(entry, mine)} "
            f"| {_mean(_total(run, 'bytes_down') / 1e6 for run in mine.values())} "
            f"| {_mean(_total(run, 'bytes_up') / 1e6 for run in mine.values())} "
            f"| {_mean(_total(run, 'simulated_s') for run in mine.values())} |"
        )
    by_label = {entry.label: entry for entry in comparison.entries}
    claims = ["| ordering | difference of means | seeds that agree | held |", "|---|---|---|---|"]
    for better, worse in comparison.claims:
        both = sorted(set(runs[better]) & set(runs[worse]))
        differences = [
            accuracy(runs[better][s], by_label[better].model) - accuracy(runs[worse][s], by_label[worse].model)
            for s in both
        ]
        claims.append(f"| {better} > {worse} | {_verdict(differences)} |")
    return "\n".join(lines) + "\n\n" + "\n".join(claims)


def accuracy(run: Run, model: str) -> float:
    """Of a model after the last round."""
    return float(run["rounds"][-1]["evaluation"][model]["accuracy"])


def equal_bytes(runs: Mapping[str, Mapping[int, Run]], seed: int) -> int:
    """Bytes both ways of the whole run of the method that took fewest."""
    return min(_total(of[seed], "bytes_down") + _total(of[seed], "bytes_up") for of in runs.values() if seed in of)


def accuracy_within(run: Run, model: str, budget: int) -> float | None:
    """Of the last evaluation before more than ``budget`` bytes had travelled; None when there was none."""
    spent, found = 0, None
    for entry in run["rounds"]:
        spent += entry["bytes_down"] + entry["bytes_up"]
        if spent > budget:
            break
        if "evaluation" in entry:
            found = float(entry["evaluation"][model]["accuracy"])
    return found


def percent(values: Sequence[float]) -> str:
    """Mean and standard deviation (of a sample) in percent."""
    if not values:
        return "none"
    mean = f"{100 * statistics.mean(values):.1f}"
    return f"{mean} ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else mean


def _others(entry: Entry, runs: Mapping[int, Run]) -> str:
    labels = [label for label in next(iter(runs.values()))["rounds"][-1]["evaluation"] if label != entry.model]
    return ", ".join(f"{label} {percent([accuracy(run, label) for run in runs.values()])}" for label in labels)


def _verdict(differences: Sequence[float]) -> str:
    if not differences:
        return "| | not run"
    mean, agree = statistics.mean(differences), sum(difference > 0 for difference in differences)
    held = "yes" if mean > 0 and agree == len(differences) else "in the mean" if mean > 0 else "**no**"
    return f"{100 * mean:+.1f} | {agree} of {len(differences)} | {held}"


# seconds to an accuracy


def timed_tables(comparison: Comparison, runs: Mapping[str, Mapping[int, Run]]) -> str:
    """Simulated seconds, rounds and bytes to each target, and the first method's share of the second's."""
    parts = []
    fast, slow = comparison.claims[0]
    for target in TARGETS:
        lines = [
            f"Target accuracy {100 * target:.0f} %:",
            "",
            f"| seed | {fast}: s | rounds | MB | {slow}: s | rounds | MB | share of the time |",
            "|---|---|---|---|---|---|---|---|",
        ]
        shares = []
        for seed in sorted(set(runs[fast]) & set(runs[slow])):
            cells = []
            reached = [reach(runs[label][seed], target) for label in (fast, slow)]
            for found in reached:
                cells.append("not reached | |" if found is None else f"{found[1]:.0f} | {found[0]} | {found[2]:.0f}")
            share = "" if None in reached else f"{reached[0][1] / reached[1][1]:.2f}"  # type: ignore[index]
            shares += [float(share)] if share else []
            lines.append(f"| {seed} | {' | '.join(cells)} | {share} |")
        if shares:
            deviation = f" ± {statistics.stdev(shares):.2f}" if len(shares) > 1 else ""
            held = "yes" if statistics.mean(shares) <= comparison.share else "**no**"
            lines += ["", f"Share {statistics.mean(shares):.2f}{deviation}; at most {comparison.share:.2f}: {held}."]
        parts.append("\n".join(lines))
    finals = ["| method | accuracy at the end, % | density at the end | MB down | MB up | simulated s |"]
    finals.append("|---|---|---|---|---|---|")
    for entry in comparison.entries:
        mine = list(runs[entry.label].values())
        if mine:
            densities = [run["rounds"][-1].get("density", 1.0) for run in mine]
            finals.append(
                f"| {entry.label} | {percent([accuracy(run, entry.model) for run in mine])} "
                f"| {statistics.mean(densities):.3f} | {_mean(_total(run, 'bytes_down') / 1e6 for run in mine)} "
                f"| {_mean(_total(run, 'bytes_up') / 1e6 for run in mine)} "
                f"| {_mean(_total(run, 'simulated_s') for run in mine)} |"
            )
    return "\n\n".join([*parts, "\n".join(finals)])


def reach(run: Run, target: float, model: str = "server") -> tuple[int, float, float] | None:
    """Rounds, simulated seconds and MB both ways until an evaluation first reached ``target``; None if none did."""
    seconds = megabytes = 0.0
    for number, entry in enumerate(run["rounds"], start=1):
        seconds += entry["simulated_s"]
        megabytes += (entry["bytes_down"] + entry["bytes_up"]) / 1e6
        if entry.get("evaluation", {}).get(model, {"accuracy": 0.0})["accuracy"] >= target:
            return number, seconds, megabytes
    return None


def _total(run: Run, key: str) -> int:
    """Of all rounds; seconds rounded."""
    return round(sum(entry[key] for entry in run["rounds"]))


def _mean(values: Iterable[float]) -> str:
    return f"{statistics.mean(values):,.0f}"
