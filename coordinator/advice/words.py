"""Advice in words, and as values for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from coordinator.advice.ranking import Advice, Option
from coordinator.advice.recorded import Setting

UNITS = {"time": "time", "bytes": "bytes", "cpu": "processor time"}


def lines(advice: Advice) -> Iterator[str]:
    """The advice for people: what to run, why, where the map is thin, and the table."""
    yield headline(advice)
    yield from (f"  {reason}" for reason in reasons(advice))
    if advice.thin:
        yield "the map is thin here; simulate before you rely on it:"
        yield from (f"  {reason}" for reason in advice.thin)
    yield ""
    yield f"{'method and level':24}{'memory MB':>11}{'rounds':>8}{'time s':>10}{'MB moved':>10}{'CPU s':>10}  outcome"
    for option in advice.options:
        yield _row(option)


def headline(advice: Advice) -> str:
    """What to run, or that nothing recorded does it."""
    choice = advice.choice
    if choice is not None and advice.is_far:
        return f"nothing recorded is like this run; by the nearest setting, as a guess: {named(choice)}"
    if choice is not None:
        return f"run {named(choice)}"
    nearest = next((option for option in advice.options if option.outcome == "too-slow"), None)
    if nearest is not None:
        return (
            f"nothing that fits reached accuracy {advice.target:.3f} in the rounds that were recorded; nearest, at "
            f"{nearest.last:.3f}: {named(nearest)}"
        )
    return f"nothing in the map fits {advice.budget_mb:g} MB with this model"


def named(option: Option) -> str:
    """The method with its options, as ``[method]`` takes them."""
    told = ", ".join(f"{key} = {_toml(value)}" for key, value in option.course.options.items())
    return f'name = "{option.course.method}"' + (f", {told}" if told else "")


def reasons(advice: Advice) -> Iterator[str]:
    """Why, one sentence each."""
    choice = advice.choice
    named_settings = " and ".join(_setting(setting) for setting in advice.recorded)
    is_between = len(advice.recorded) > 1
    told = "the run is between the recorded settings" if is_between else "the nearest recorded setting is"
    yield f"{told} {named_settings}; target: accuracy {advice.target:.3f}"
    if choice is None or choice.spent is None:
        return
    yield (
        f"{'between them' if is_between else 'there'} it took {choice.rounds} rounds; with this model, "
        f"{advice.speed.link_mbit / 8:g} MB/s and {advice.speed.gmac_per_s:g} GMAC/s that is "
        f"{choice.spent.time_s:,.0f} s, {choice.spent.bytes / 1e6:,.1f} MB and {choice.spent.cpu_s:,.0f} processor "
        "seconds of all devices"
    )
    if advice.budget_mb:
        yield f"its step is predicted at {choice.memory_mb:.0f} MB; the smallest device has {advice.budget_mb:g} MB"
    rest = [option for option in advice.options[1:] if option.outcome == "fits"]
    if rest:
        ratio = rest[0].cost(advice.by) / choice.cost(advice.by)
        yield f"next: {rest[0].course.label}, {ratio:.2f} times its {UNITS[advice.by]}"
    large = [option.course.label for option in advice.options if option.outcome == "too-large"]
    if large:
        yield f"too large: {', '.join(large)}"


def values(advice: Advice) -> dict[str, Any]:
    """The advice for programs."""
    return {
        "choice": None if advice.choice is None else _values(advice.choice),
        "target": round(advice.target, 4),
        "by": advice.by,
        "budget_mb": advice.budget_mb,
        "link_mb_s": round(advice.speed.link_mbit / 8, 4),
        "setting": " and ".join(setting.name for setting in advice.recorded),
        "distance": round(advice.distance, 2),
        "is_guess": advice.is_far,
        "thin": list(advice.thin),
        "reasons": list(reasons(advice)),
        "options": [_values(option) for option in advice.options],
    }


def _setting(setting: Setting) -> str:
    seeds, features = setting.seeds(), setting.features
    counts = f"{features.devices} devices, {features.participants} in a round"
    return f"'{setting.name}' ({counts}, {seeds} seed{'s' if seeds > 1 else ''})"


def _values(option: Option) -> dict[str, Any]:
    spent = option.spent
    return {
        "label": option.course.label,
        "method": option.course.method,
        "options": option.course.options,
        "outcome": option.outcome,
        "memory_mb": round(option.memory_mb, 1),
        "rounds": option.rounds,
        "time_s": None if spent is None else round(spent.time_s, 1),
        "bytes": None if spent is None else round(spent.bytes),
        "cpu_s": None if spent is None else round(spent.cpu_s, 1),
        "last_accuracy": round(option.last, 4),
        "reason": option.reason,
    }


def _row(option: Option) -> str:
    spent = option.spent
    figures = [
        f"{option.memory_mb:11.0f}" if option.memory_mb else f"{'-':>11}",
        f"{option.rounds:8}" if option.rounds else f"{'-':>8}",
        *(
            [f"{spent.time_s:10,.0f}", f"{spent.bytes / 1e6:10,.1f}", f"{spent.cpu_s:10,.0f}"]
            if spent
            else [f"{'-':>10}"] * 3
        ),
    ]
    told = {
        "fits": "",
        "too-large": "does not fit",
        "too-slow": f"ended at {option.last:.3f}",
        "refused": f"refused: {option.reason[:80]}",
    }
    return f"{option.course.label:24}{''.join(figures)}  {told[option.outcome]}".rstrip()


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)
