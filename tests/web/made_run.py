"""A run's ledger of any size, written by a script: so many devices, so many rounds, every kind of trouble in it.

Rows are what the ledger's own methods write, in bulk: a million assignments by them would take an hour. From the
eleventh round on devices do what they did ten rounds before. The figures are drawn from a seed, in sizes that real runs
have. No figure of a measurement is made of them.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection

from coordinator.config.canonical import canonical_toml
from coordinator.history.live import FILE, LiveDevice, LiveState
from coordinator.ledger.database import statement
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.quarantine import Reliability
from coordinator.run_file.loading import load_config_text
from edge.contracts.codec import encode_json, encode_msgpack
from edge.contracts.messages import AgentState
from edge.contracts.plan import BlobRef, Schedule, WorkOrder, assignment_id
from edge.serving.traffic import Traffic
from profiles.device import CoreGroup, DeviceProfile
from tests.builders import train_report
from tests.federation.small_run import config_text

MIB = 2**20
DRAWN = 10
"""Rounds that are drawn; later ones repeat them."""
BOARDS = ("Raspberry Pi 5 Model B", "Raspberry Pi 4 Model B", "Raspberry Pi Zero 2 W")
LEVELS = ("whole", "rank 16", "rank 4")
BUDGETS = (420 * MIB, 230 * MIB, 140 * MIB)
PEAKS = (371 * MIB, 204 * MIB, 118 * MIB)
STEPS_MS = (5.5, 14.0, 31.0)
LAYERS = ("conv1", *(f"blocks.{n}.conv{m}" for n in range(6) for m in (1, 2)), "head.norm", "head.fc")
FACTORED = LAYERS[5:13]


@dataclass(frozen=True)
class MadeRun:
    """A run in ``folder``: the last of its ``rounds`` is under way, unless it is finished."""

    folder: Path
    devices: int
    rounds: int


def make_run(folder: Path, *, devices: int, rounds: int, finished: bool = False, seed: int = 1) -> MadeRun:
    """Writes the ledger, and, of a run under way, ``live.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    text = config_text(rounds=rounds, size=devices, local=0, evaluation="every = 1")
    text = text.replace('name = "small"', f'name = "digits-{devices}"').replace(
        "hidden = [96, 96]", "hidden = [2048, 2048]"
    )
    config = canonical_toml(load_config_text(text))
    names = [f"pi-{number:04}" for number in range(devices)]
    now = time.time()
    with Ledger.create(
        folder / "ledger.sqlite", federation=f"digits-{devices}", config=config, seed=3, is_durable=False
    ) as ledger:
        ledger.led_by("coordinator-1")
        ledger.profiles.freeze(_profile(name, draw) for name in names)
        for label in "abcd":
            ledger.blobs.add(label * 64, 1000)
        for number, label in enumerate("abc"):
            ledger.artifacts.add(f"key-{number}", label * 64)
        began = now - 30.0 * rounds - 90
        done = rounds if finished else rounds - 1
        for index in range(done):
            at = began + 30.0 * index
            if index < DRAWN:
                _round(ledger, names, index, at, draw)
            else:
                _repeat(ledger, index, at, 30.0 * DRAWN)
        if not finished:
            _open_round(ledger, names, rounds - 1, now - 20, draw)
        _beside(ledger, names, draw, done)
        with ledger._file.transaction() as sql:
            sql.execute(statement("UPDATE federation SET created_at = :at"), {"at": began})
        if finished:
            ledger.move_federation("finished")
            (folder / "summary.json").write_text(json.dumps({"accuracy": 0.93}))
        else:
            write_live(folder, names, draw)
    (folder / "config.toml").write_text(config)
    return MadeRun(folder, devices, rounds)


def write_live(folder: Path, names: list[str], draw: random.Random, *, lasts_s: float = 3600.0) -> None:
    """What a running coordinator would say of the fleet, dated so far ahead that it stays fresh for a test."""
    state = LiveState(
        written_at=time.time() + lasts_s, deadline_left_s=96.0, devices=tuple(_live(name, draw) for name in names)
    )
    (folder / f".{FILE}").write_bytes(msgspec.json.encode(state))
    (folder / f".{FILE}").replace(folder / FILE)


def _kind(name: str) -> int:
    return int(name[3:]) % 3


def _profile(name: str, draw: random.Random) -> DeviceProfile:
    kind = _kind(name)
    return DeviceProfile(
        device=name,
        budget_bytes=BUDGETS[kind],
        ram_bytes=(8192, 4096, 512)[kind] * MIB,
        cpu_count=4,
        cpu_model=("Cortex-A76", "Cortex-A72", "Cortex-A53")[kind],
        machine="aarch64",
        system="Linux 6.12",
        os_name="Debian GNU/Linux 13 (trixie)",
        board=BOARDS[kind],
        cores=(CoreGroup(name=("Cortex-A76", "Cortex-A72", "Cortex-A53")[kind], count=4),),
        supervisor_idle_bytes=29 * MIB,
        trainer_idle_bytes={"onnxruntime": 61 * MIB},
        storage_free_bytes=11_000_000_000,
        runtimes={"onnxruntime": "1.31.1"},
        python="3.13.5",
    )


def _live(name: str, draw: random.Random) -> LiveDevice:
    kind, luck = _kind(name), draw.random()
    state: AgentState = (
        "training" if luck < 0.62 else "uploading" if luck < 0.66 else "fetching" if luck < 0.7 else "idle"
    )
    waiting_for, reason, away, heat = "", "", "", 45 + 20 * draw.random()
    if 0.70 <= luck < 0.74:
        state, waiting_for, heat = "waiting", "temperature", 81.0
        reason = "81 °C, trains below 75 °C"
    elif 0.74 <= luck < 0.78:
        state, waiting_for, reason = "waiting", "battery", "12 % left, trains above 20 %"
    elif luck > 0.96:
        away = "connection lost"
    is_phone = kind == 1 and luck < 0.8
    return LiveDevice(
        device=name,
        is_here=not away,
        heard_at=time.time() - 3 * draw.random(),
        state=state,
        step=draw.randrange(1, 30) if state == "training" else 0,
        total_steps=30 if state == "training" else 0,
        loss=0.4 + draw.random() / 5,
        waiting_for=waiting_for,
        reason=reason,
        away_reason=away,
        budget_bytes=BUDGETS[kind],
        num_examples=180 + kind,
        agent_version="0.1.0",
        board=BOARDS[kind],
        tags=(("lab", "hall", "roof")[kind],),
        temperature_c=round(heat, 1),
        battery_percent=12.0 if waiting_for == "battery" else 60.0 if is_phone else None,
        charging=not (waiting_for == "battery" or is_phone),
    )


def _order(kind: int) -> bytes:
    upload = [f"{layer}.weight" for layer in LAYERS if kind < 2 or not layer.startswith("blocks.0")]
    if kind:
        upload = [u for u in upload if u.removesuffix(".weight") not in FACTORED]
        upload += [f"{layer}.{part}" for layer in FACTORED for part in "uv"]
    return encode_msgpack(
        WorkOrder(
            assignment_id="e" * 64,
            federation="made",
            device="pi-0000",
            round=0,
            attempt=0,
            artifact=BlobRef("abc"[kind] * 64, 1, "raw", 1),
            weights=BlobRef("d" * 64, 9, "raw", 9),
            schedule=Schedule(epochs=1),
            batch=16,
            last_batch="drop",
            data_seed=1,
            hyper={},
            upload=tuple(upload),
            peak_bytes=PEAKS[kind],
        )
    )


_ORDERS = [_order(kind) for kind in range(3)]
"""One for all devices of a kind: of a hundred million bytes nobody reads more than tensors and peak."""


def _cut(kind: int) -> bytes:
    cut: dict[str, Any] = {
        layer: {"factor": {"form": "spatial", "components": list(range((0, 16, 4)[kind]))}} for layer in FACTORED
    }
    if kind == 2:
        cut |= {layer: {"frozen": True} for layer in LAYERS if layer.startswith("blocks.0")}
    return encode_json(cut if kind else {})


_CUTS = [_cut(kind) for kind in range(3)]
_ASSIGNMENT = (
    "INSERT INTO assignments (assignment_id, round, attempt, device, level, cut, artifact_digest, weights_digest, "
    "work_order, state, code, reason, form, planned_at, accepted_at, answered_at) VALUES (:id, :round, 0, :device, "
    ":level, :cut, :artifact, :weights, :order, :state, :code, :reason, 'plain', :planned, :accepted, :answered)"
)
_ROUND = (
    "INSERT INTO rounds (round, attempt, state, deadline_s, participants, model_digest, metrics, planned_at, "
    "published_at, aggregating_at, ended_at) VALUES (:round, 0, :state, 120.0, :participants, :model, :metrics, "
    ":planned, :published, :summed, :ended)"
)


def _row(name: str, index: int, at: float, draw: random.Random, *, is_open: bool = False) -> dict[str, Any]:
    kind, luck = _kind(name), draw.random()
    accepted = at + 0.2 + draw.random()
    answered = accepted + (6, 10, 17)[kind] * (0.7 + 0.5 * draw.random())
    state, code, reason = "reported", "", ""
    if luck < 0.01:
        state, code, reason = "refused", "out-of-memory", "peak 152 MB, 140 MB allowed"
    elif luck < 0.03:
        state, code, reason, answered = "expired", "deadline-expired", "no report before the deadline", at + 25.0
    elif is_open and luck < 0.75:
        state, answered = "accepted", 0.0
    return {
        "id": assignment_id("made", index, name, 0),
        "round": index,
        "device": name,
        "level": LEVELS[kind],
        "cut": _CUTS[kind],
        "artifact": "abc"[kind] * 64,
        "weights": "d" * 64,
        "order": _ORDERS[kind],
        "state": state,
        "code": code,
        "reason": reason,
        "planned": at,
        "accepted": accepted,
        "answered": answered,
    }


def _reports(rows: list[dict[str, Any]], index: int, draw: random.Random) -> list[dict[str, Any]]:
    templates = [[_report(kind, index, draw) for _ in range(12)] for kind in range(3)]
    found = []
    for row in rows:
        if row["state"] == "reported":
            template = templates[_kind(row["device"])][draw.randrange(12)]
            took = b"%.1f" % (row["answered"] - row["accepted"])
            report = template.replace(b"THE-ID", row["id"].encode()).replace(b"THE-DEVICE", row["device"].encode())
            found.append({"id": row["id"], "digest": "d" * 64, "report": report.replace(b"0.125", took), "waits": 0})
    return found


def _report(kind: int, index: int, draw: random.Random) -> bytes:
    report = train_report(
        "THE-ID",
        "THE-DEVICE",
        index,
        num_examples=180 + kind,
        steps=30,
        loss=round(0.35 + 1.9 / (1 + index / 8) + draw.random() / 10, 4),
        step_ms_p50=round(STEPS_MS[kind] * (0.9 + 0.2 * draw.random()), 2),
        trainer_peak_bytes=round(PEAKS[kind] * (0.9 + 0.12 * draw.random())) - 30 * MIB,
        supervisor_peak_bytes=30 * MIB,
        budget_bytes=BUDGETS[kind],
        bytes_down=(17, 9, 4)[kind] * 1_000_000,
        bytes_up=(17, 9, 4)[kind] * 1_000_000,
        wall_s=0.125,
    )
    return encode_json(report)


def _round(ledger: Ledger, names: list[str], index: int, at: float, draw: random.Random) -> None:
    rows = [_row(name, index, at, draw) for name in names]
    reports = _reports(rows, index, draw)
    kept_out = {reports[draw.randrange(len(reports))]["id"]} if index % 7 == 5 else set()
    counted = [row for row in rows if row["state"] == "reported" and row["id"] not in kept_out]
    with ledger._file.transaction() as sql:
        _committed(sql, index, at, [row["device"] for row in counted])
        sql.execute(statement(_ASSIGNMENT), rows)
        sql.execute(statement("INSERT INTO updates VALUES (:id, :digest, :report, :waits)"), reports)
        sql.execute(
            statement("INSERT INTO contributions VALUES (:id, :round, 0, 180.0)"),
            [{"id": row["id"], "round": index} for row in counted],
        )
        for row in rows:
            if row["id"] in kept_out:
                evidence = encode_json({"rms": 9.1, "median": 1.02, "reason": "9.1 times the median"})
                sql.execute(
                    statement("INSERT INTO quarantine VALUES (:id, :device, :round, 'norm-outlier', :evidence, :at)"),
                    {"id": row["id"], "device": row["device"], "round": index, "evidence": evidence, "at": at + 25},
                )
    ledger.audit_log.add("round-committed", f"round:{index}.0", {"reports": len(counted)})


def _committed(sql: Connection, index: int, at: float, devices: list[str]) -> None:
    score = 0.95 - 0.75 / (1 + index / 6)
    bytes_of_all = sum((17, 9, 4)[_kind(device)] for device in devices) * 1_000_000
    metrics = {
        "reports": len(devices),
        "examples": 180 * len(devices),
        "train_loss": 0.4 + 1.9 / (1 + index / 8),
        "bytes_up": bytes_of_all,
        "bytes_down": bytes_of_all,
        "over_budget": 0,
        "wall_s": 28.0,
        "evaluation": {
            label: {"accuracy": round(score - drop, 4), "loss": round(2.1 / (1 + index / 8) + drop, 4)}
            for label, drop in (("server", 0.0), ("whole", 0.0), ("rank 16", 0.01), ("rank 4", 0.04))
        },
        "privacy": {"epsilon": 0.9 * (index + 1) ** 0.5, "delta": 1e-5, "cohort": len(devices)},
    }
    values = {"round": index, "planned": at, "published": at + 0.1, "summed": at + 26.0, "ended": at + 28.0}
    what = {"state": "committed", "participants": encode_json(devices), "model": "d" * 64}
    sql.execute(statement(_ROUND), {**values, **what, "metrics": encode_json(metrics)})


def _repeat(ledger: Ledger, index: int, at: float, later_s: float) -> None:
    """The round of :data:`DRAWN` rounds before, once more."""
    source = {"source": index - DRAWN, "round": index, "later": later_s, "id": f"{index:08x}"}
    with ledger._file.transaction() as sql:
        counted = (
            "SELECT a.device FROM contributions c JOIN assignments a USING (assignment_id) WHERE c.round = :source"
        )
        _committed(sql, index, at, [device for (device,) in sql.execute(statement(counted), {"source": index - DRAWN})])
        sql.execute(
            statement(
                "INSERT INTO assignments (assignment_id, round, attempt, device, level, cut, artifact_digest, "
                "weights_digest, work_order, state, code, reason, form, planned_at, accepted_at, answered_at) "
                "SELECT :id || substr(assignment_id, 9), :round, 0, device, level, cut, artifact_digest, "
                "weights_digest, work_order, state, code, reason, form, planned_at + :later, accepted_at + :later, "
                "answered_at + :later FROM assignments WHERE round = :source"
            ),
            source,
        )
        sql.execute(
            statement(
                "INSERT INTO updates SELECT :id || substr(u.assignment_id, 9), u.update_digest, u.report, 0 "
                "FROM assignments a JOIN updates u USING (assignment_id) WHERE a.round = :source"
            ),
            source,
        )
        sql.execute(
            statement(
                "INSERT INTO contributions SELECT :id || substr(assignment_id, 9), :round, 0, weight "
                "FROM contributions WHERE round = :source"
            ),
            source,
        )
    ledger.audit_log.add("round-committed", f"round:{index}.0")


def _open_round(ledger: Ledger, names: list[str], index: int, at: float, draw: random.Random) -> None:
    rows = [_row(name, index, at, draw, is_open=True) for name in names]
    with ledger._file.transaction() as sql:
        values = {"round": index, "planned": at, "published": at + 0.1, "summed": 0.0, "ended": 0.0}
        nothing = {"participants": encode_json([]), "model": "", "metrics": encode_json({})}
        sql.execute(statement(_ROUND), {**values, "state": "collecting", **nothing})
        sql.execute(statement(_ASSIGNMENT), rows)
        if reports := _reports(rows, index, draw):
            sql.execute(statement("INSERT INTO updates VALUES (:id, :digest, :report, :waits)"), reports)


def _beside(ledger: Ledger, names: list[str], draw: random.Random, done: int) -> None:
    rows = []
    for name in names:
        kind = _kind(name)
        rows.append(
            {
                "device": name,
                "key": f"key-{kind}",
                "predicted": PEAKS[kind],
                "measured": round(PEAKS[kind] * (0.93 + 0.09 * draw.random())),
                "ms": STEPS_MS[kind] * (0.9 + 0.2 * draw.random()),
            }
        )
    with ledger._file.transaction() as sql:
        sql.execute(statement("INSERT INTO measurements VALUES (:device, :key, 16, :predicted, :measured, :ms)"), rows)
    with ledger._file.transaction() as sql:
        reported = sql.execute(
            statement("SELECT device, COUNT(*) FROM assignments WHERE state = 'reported' AND round < :done GROUP BY 1"),
            {"done": done},
        )
        each = {name: (17, 9, 4)[_kind(name)] * 1_000_000 * count for name, count in reported}
    ledger.traffic.add(
        [
            Traffic(device=name, direction=way, scheme="mqtt", payload_bytes=size, wire_bytes=round(size * 1.004))  # type: ignore[arg-type]
            for name, size in each.items()
            for way in ("up", "down")
        ]
    )
    barred = names[len(names) // 2]
    ledger.reliabilities.put([Reliability(device=barred, score=0.4, quarantined=2, barred_until=done + 3)])
