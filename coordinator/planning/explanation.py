"""Why a device got what it got, as lines for people: what it gets, the parts of it, and everything that was tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coordinator.planning.planner import NothingFits, Placement
from coordinator.planning.prediction import MB, Prediction
from coordinator.planning.trial import Trial
from edge.contracts.errors import PlanError
from profiles.device import DeviceProfile

_HEAD = ("", "cut", "runtime", "form", "idle", "step", "headroom", "peak MB", "step ms")


def headline(name: str, profile: DeviceProfile, placement: Placement | PlanError) -> str:
    """What the device gets, on one line."""
    if isinstance(placement, PlanError):
        return f"{name}: {placement}"
    return f"{name} of {limit_of(profile)}: {placement.chosen.describe()}"


def limit_of(profile: DeviceProfile) -> str:
    """What the device is held to: ``512 MB``, ``no limit``."""
    ceiling = profile.ceiling_bytes
    return f"{ceiling / MB:.0f} MB" if ceiling else "no limit"


def explanation(profile: DeviceProfile, title: str, placement: Placement | PlanError) -> Iterator[str]:
    """The lines below the headline."""
    if title and title != profile.device:
        yield f"device    {title}"
    yield f"limit     {_limit(profile)}"
    tried: Sequence[Trial]
    if isinstance(placement, PlanError):
        tried = placement.tried if isinstance(placement, NothingFits) else ()
    else:
        tried = placement.tried
        yield from _parts(profile, placement.chosen)
    if tried:
        yield f"tried     {len(tried)}, in this order, sizes in MB of 2^20 bytes"
        yield from ("  " + line for line in _table(tried))


def _limit(profile: DeviceProfile) -> str:
    ceiling = profile.ceiling_bytes
    if not ceiling:
        return "none known: everything fits; give a budget"
    if ceiling == profile.budget_bytes:
        return f"{ceiling / MB:.1f} MB, the budget its owner set"
    field = "memory_limit_bytes" if ceiling == profile.memory_limit_bytes else "ram_bytes"
    what = "a control group's" if field == "memory_limit_bytes" else "all of its memory"
    source = profile.sources.get(field, "")
    rest = "; no budget is set, and the system needs some of it" if field == "ram_bytes" else "; no budget is set"
    return f"{ceiling / MB:.1f} MB, {what}{f' ({source})' if source else ''}{rest}"


def _parts(profile: DeviceProfile, chosen: Prediction) -> Iterator[str]:
    source = profile.sources.get("trainer_idle_bytes", "measured on the device")
    yield (
        f"idle      supervisor {chosen.supervisor_bytes / MB:.1f} MB, its transfers included, "
        f"trainer {chosen.trainer_bytes / MB:.1f} MB: {source}"
    )
    corrected = "" if chosen.correction == 1.0 else f", x {chosen.correction:.2f} by what was measured while training"
    yield f"step      {chosen.growth_bytes / MB:.1f} MB: {chosen.growth_source}{corrected}"
    yield f"headroom  {chosen.margin_bytes / MB:.1f} MB"
    time = f", {chosen.step_ms:.0f} ms a step" if chosen.step_ms is not None else ""
    yield f"threads   {chosen.threads}{time}: {chosen.threads_source}"


def _table(tried: Sequence[Trial]) -> Iterator[str]:
    rows = [_HEAD, *(_row(trials) for trials in _grouped(tried))]
    notes = ["", *("" if t[0].prediction else t[0].reason.partition("; ")[0] for t in _grouped(tried))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    for row, note in zip(rows, notes, strict=True):
        cells = [text.ljust(w) if i < 4 else text.rjust(w) for i, (text, w) in enumerate(zip(row, widths, strict=True))]
        yield f"{'  '.join(cells)}  {note}".rstrip()


def _grouped(tried: Sequence[Trial]) -> list[list[Trial]]:
    """Forms of one step that came to the same without a prediction, together."""
    groups: dict[object, list[Trial]] = {}
    for place, trial in enumerate(tried):
        same = (
            (trial.level, trial.runtime, trial.form.of_model, trial.outcome)
            if trial.outcome.startswith("estimated")
            else place
        )
        groups.setdefault(same, []).append(trial)
    return list(groups.values())


def _row(trials: Sequence[Trial]) -> tuple[str, ...]:
    trial = min(trials, key=lambda trial: trial.prediction.peak_bytes if trial.prediction else 0)
    found = trial.prediction
    form = trial.form.name if len(trials) == 1 else f"{trial.form.name} and {len(trials) - 1} more"
    where = (trial.words, trial.level.name, trial.runtime, form)
    if found is None:
        return (*where, "", "", "", "", "")
    sizes = (found.idle_bytes, found.growth_bytes, found.margin_bytes, found.peak_bytes)
    time = "-" if found.step_ms is None else f"{found.step_ms:.0f}"
    return (*where, *(f"{size / MB:.1f}" for size in sizes), time)
