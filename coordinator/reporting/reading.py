"""Reads a run for reports: from its ledger, which also has an unfinished one; a simulation from the files it leaves."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from coordinator.history.history import PAGE, History
from coordinator.history.records import Counts, DeviceRecord, RoundRecord
from coordinator.reporting.subject import DeviceFacts, FailedAttempt, RoundFacts, Subject
from edge.contracts.errors import ConfigError

MOST_ASSIGNMENTS = 50_000
"""Work is read one by one for the devices' seconds up to here; a run with more has none in its report."""

LATEST_EVENTS = 200
"""Entries of the audit log that the last committed round is looked for in."""

_SIMULATION = "simulation.json"


def read_subject(run_dir: Path) -> Subject:
    """The run or simulation in ``run_dir``, as far as it is.

    Raises:
        ConfigError: there is none; LedgerError: its ledger cannot be read.
    """
    if (run_dir / _SIMULATION).is_file():
        return _simulated(run_dir)
    if not run_dir.is_dir():
        raise ConfigError([f"RUN_DIR: {run_dir} is no folder"], hint="give the directory of a run, such as runs/first")
    with History.of(run_dir) as history:
        return subject_of(history, str(run_dir))


def subject_of(history: History, folder: str, *, summary: Mapping[str, Any] | None = None) -> Subject:
    """A run by its ledger.

    Args:
        summary: of a run that is about to be marked finished; else what the history has.
    """
    run = history.run()
    attempts = list(_rounds(history))
    committed = [entry for entry in attempts if entry.state == "committed"]
    trained = [entry for entry in committed if entry.round < run.rounds_asked]
    found = dict(summary if summary is not None else run.summary)
    rows = {row["device"]: row for row in found.get("device_table", ())}
    return Subject(
        name=run.name,
        folder=folder,
        is_simulated=False,
        state="finished" if summary is not None else run.state,
        seed=run.seed,
        config_text=run.config,
        rounds=tuple(_round(entry) for entry in trained),
        devices=tuple(_device(record, rows.get(record.device, {})) for record in _devices(history)),
        failed=tuple(
            FailedAttempt(number=entry.round + 1, attempt=entry.attempt + 1, why=entry.why)
            for entry in attempts
            if entry.state == "abandoned"
        ),
        quarantined=tuple(_quarantined(history, attempts)),
        ranks=_ranks(Path(folder)),
        **_work(history, attempts),
        started_at=run.started_at,
        ended_at=run.ended_at,
        summary=found,
        wire_bytes=_wire(history),
        digests={**_digests(history), **_final_file(Path(folder))},
    )


def _rounds(history: History) -> Iterator[RoundRecord]:
    since = 0
    while page := history.rounds(since, limit=PAGE):
        if len(page) < PAGE:
            yield from page
            return
        # The last round of a full page may have further attempts: it is read again with the next.
        whole = [entry for entry in page if entry.round < page[-1].round]
        yield from whole
        since = page[-1].round if whole else page[-1].round + 1


def _devices(history: History) -> Iterator[DeviceRecord]:
    after = ""
    while page := history.devices(after, limit=PAGE):
        yield from page
        after = page[-1].device


def _round(entry: RoundRecord) -> RoundFacts:
    return RoundFacts(
        number=entry.round + 1,
        reports=entry.counted or sum(entry.reported.values()),
        loss=entry.loss,
        scores=entry.scores,
        bytes_up=entry.bytes_up,
        bytes_down=entry.bytes_down,
        wall_s=entry.wall_s,
        reported=entry.reported,
        assigned={str(state): count for state, count in entry.assigned.items()},
        quarantined=entry.quarantined,
        over_budget=entry.over_budget,
        training_s=_between(entry.published_at, entry.aggregating_at),
        aggregating_s=_between(entry.aggregating_at, entry.ended_at),
        planning_s=_planning(entry),
        epsilon=None if entry.privacy is None else entry.privacy.epsilon,
        delta=None if entry.privacy is None else entry.privacy.delta,
    )


def _planning(entry: RoundRecord) -> float | None:
    """What the round took before its orders were published: placing, cutting, exporting."""
    rest = _between(entry.published_at, entry.ended_at)
    return None if rest is None or entry.wall_s is None else max(0.0, entry.wall_s - rest)


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None or end < begin else end - begin


def _device(record: DeviceRecord, row: Mapping[str, Any]) -> DeviceFacts:
    """A device by the ledger; threads and the runtime that it used are the summary's."""
    return DeviceFacts(
        device=record.device,
        board=record.board,
        runtime=row.get("runtime", "") or ", ".join(record.runtimes),
        level=record.level,
        form=record.form or "plain",
        threads=int(row.get("threads", 0) or 0),
        budget_bytes=record.budget_bytes,
        predicted_peak_bytes=record.predicted_peak_bytes,
        measured_peak_bytes=record.measured_peak_bytes,
        step_ms=record.step_ms,
        reports=record.counts.reported,
        bytes_up=record.bytes_up,
        bytes_down=record.bytes_down,
        over_budget=int(row.get("over_budget", 0)),
        problems=tuple(_problems(record, record.counts)),
    )


def _problems(record: DeviceRecord, counts: Counts) -> Iterator[str]:
    why = f" (last: {record.reason or record.code})" if record.reason or record.code else ""
    if counts.refused:
        yield f"refused work {_times(counts.refused)}{why if record.state == 'refused' else ''}"
    if counts.rejected:
        yield f"update rejected {_times(counts.rejected)}{why if record.state == 'rejected' else ''}"
    if counts.expired:
        yield f"did not answer in time {_times(counts.expired)}"
    if counts.quarantined:
        yield f"update set aside {_times(counts.quarantined)} ({record.quarantine})"
    if record.barred_until > record.round >= 0:
        yield f"sits out until round {record.barred_until + 1}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _quarantined(history: History, attempts: list[RoundRecord]) -> Iterator[tuple[int, str, str]]:
    for entry in attempts:
        if entry.quarantined:
            for work in history.assignments_of_round(entry.round, entry.attempt):
                if work.quarantine:
                    yield entry.round + 1, work.device, work.quarantine


def _work(history: History, attempts: list[RoundRecord]) -> dict[str, float]:
    """Sums over assignments of what devices say of their work; nothing of a run with too many of them."""
    if sum(sum(entry.assigned.values()) for entry in attempts) > MOST_ASSIGNMENTS:
        return {}
    said: dict[str, list[float]] = {}
    for entry in attempts:
        for work in history.assignments_of_round(entry.round, entry.attempt, limit=MOST_ASSIGNMENTS):
            for name in ("trained_s", "cpu_s", "joules"):
                if (value := getattr(work, name)) is not None:
                    said.setdefault(name, []).append(value)
    return {name: math.fsum(values) for name, values in said.items()}


def _wire(history: History) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in history.traffic():
        found[part.direction] = found.get(part.direction, 0) + part.wire_bytes
    return found


def _digests(history: History) -> dict[str, str]:
    """Of the run file, and of the model after the last committed round: what the audit log has."""
    found: dict[str, str] = {}
    for event in (*history.events(limit=1), *history.latest_events(LATEST_EVENTS)):
        if event.action == "run-begun" and "config_digest" in event.details:
            found["run file"] = str(event.details["config_digest"])
        if event.action == "round-committed" and "weights" in event.details:
            found["model after the last round"] = str(event.details["weights"])
    return found


def _final_file(run_dir: Path) -> dict[str, str]:
    path = run_dir / "checkpoints" / "final.safetensors"
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        return {"checkpoints/final.safetensors": hashlib.file_digest(file, "sha256").hexdigest()}


def _lines(run_dir: Path) -> Iterator[dict[str, Any]]:
    """Rounds of ``metrics.jsonl``; a line that a kill cut off is passed over."""
    path = run_dir / "metrics.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and found.get("event") == "round":
            yield found


def _ranks(run_dir: Path) -> dict[int, dict[str, float]]:
    return {entry["round"] + 1: entry["effective_rank"] for entry in _lines(run_dir) if entry.get("effective_rank")}


def _simulated(run_dir: Path) -> Subject:
    """A simulation, by its own record, run file and summary."""
    record = json.loads((run_dir / _SIMULATION).read_text(encoding="utf-8"))
    file, config = run_dir / "summary.json", run_dir / "config.toml"
    summary = json.loads(file.read_text(encoding="utf-8")) if file.is_file() and record.get("finished") else {}
    rows = summary.get("device_table") or [{"device": name, **row} for name, row in record.get("devices", {}).items()]
    text = config.read_text(encoding="utf-8") if config.is_file() else ""
    rounds = [entry for entry in record.get("rounds", ()) if entry.get("program") == "train"]
    found = Subject(
        name=run_dir.name,
        folder=str(run_dir),
        is_simulated=True,
        state="finished" if record.get("finished") else "running",
        seed=0,
        config_text=text,
        rounds=tuple(_simulated_round(entry) for entry in rounds),
        devices=tuple(_simulated_device(row) for row in rows),
        ranks={entry["round"] + 1: entry["effective_rank"] for entry in rounds if entry.get("effective_rank")},
        summary=summary,
        digests=_final_file(run_dir),
    )
    federation = found.table("federation")
    return _named(found, str(federation.get("name", run_dir.name)), int(federation.get("seed", 0)))


def _named(found: Subject, name: str, seed: int) -> Subject:
    return dataclasses.replace(found, name=name, seed=seed)


def _simulated_round(entry: Mapping[str, Any]) -> RoundFacts:
    spent = entry.get("privacy") or {}
    return RoundFacts(
        number=entry["round"] + 1,
        reports=entry["reports"],
        loss=entry.get("train_loss"),
        scores={
            label: {name: value for name, value in values.items() if value is not None}
            for label, values in entry.get("evaluation", {}).items()
        },
        bytes_up=entry["bytes_up"],
        bytes_down=entry["bytes_down"],
        wall_s=entry.get("wall_s"),
        reported=entry.get("levels", {}),
        assigned={"reported": entry["reports"], "refused": entry.get("refused", 0)},
        over_budget=entry.get("over_budget", 0),
        simulated_s=entry.get("simulated_s"),
        epsilon=spent.get("epsilon"),
        delta=spent.get("delta"),
    )


def _simulated_device(row: Mapping[str, Any]) -> DeviceFacts:
    return DeviceFacts(
        device=row["device"],
        board="simulated",
        runtime=row.get("runtime", "torch"),
        level=row.get("level", ""),
        form=row.get("form", "plain"),
        threads=int(row.get("threads", 0) or 0),
        budget_bytes=int(row.get("budget_bytes", 0)),
        predicted_peak_bytes=int(row.get("predicted_peak_bytes", 0)),
        measured_peak_bytes=int(row.get("measured_peak_bytes", 0)),
        step_ms=row.get("step_ms") or None,
        reports=int(row.get("rounds", 0)),
        bytes_up=int(row.get("bytes_up", 0)),
        bytes_down=int(row.get("bytes_down", 0)),
        over_budget=int(row.get("over_budget", 0)),
    )
