"""The dashboard's figures, read from the page, and the same figures by plain SQL: nothing of the page's own code."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from playwright.sync_api import Page

MIB = 2**20

TABLE = """label => {
  const table = document.querySelector(`table[aria-label="${label}"]`);
  const heads = [...table.querySelectorAll("thead th")].map(each => each.textContent);
  return [...table.querySelectorAll("tbody tr:not(.spacer)")].map(row =>
    Object.fromEntries([...row.cells].map((cell, place) => [heads[place], cell.textContent.trim()])));
}"""

FACTS = """scope => Object.fromEntries([...document.querySelector(scope).querySelectorAll("dl.facts > div")].map(each =>
  [each.querySelector("dt").textContent, each.querySelector("dd").textContent]))"""


def table(page: Page, label: str) -> list[dict[str, str]]:
    """The rows of a table, by its columns' names."""
    found: list[dict[str, str]] = page.evaluate(TABLE, label)
    return found


def facts(page: Page, scope: str) -> dict[str, str]:
    """Terms and values below ``scope``."""
    found: dict[str, str] = page.evaluate(FACTS, scope)
    return found


class Rows:
    """Plain SQL on the ledger of ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "ledger.sqlite"

    def all(self, query: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(f"file:{self._file}?mode=ro", uri=True)) as sql:
            return sql.execute(query, values).fetchall()

    def one(self, query: str, *values: Any) -> Any:
        """The only value of the only row."""
        return self.all(query, *values)[0][0]

    def states(self, round_index: int, attempt: int) -> dict[str, int]:
        """State -> assignments of the attempt."""
        found = self.all(
            "SELECT state, COUNT(*) FROM assignments WHERE round = ? AND attempt = ? GROUP BY state",
            round_index,
            attempt,
        )
        return defaultdict(int, {state: count for state, count in found})

    def layers(self) -> dict[str, int]:
        """Layer -> counted updates that hold one of its tensors."""
        found: dict[str, int] = defaultdict(int)
        for (order,) in self.all(
            "SELECT a.work_order FROM contributions c JOIN assignments a USING (assignment_id) "
            "JOIN rounds r ON r.round = c.round AND r.attempt = c.attempt WHERE r.state = 'committed'"
        ):
            names = msgspec.msgpack.decode(order)["upload"]
            for layer in {name.rpartition(".")[0] for name in names if "#" not in name}:
                found[layer] += 1
        return dict(found)

    def metrics(self, round_index: int) -> dict[str, Any]:
        """Of the committed attempt at a round."""
        found = self.one("SELECT metrics FROM rounds WHERE round = ? AND state = 'committed'", round_index)
        values: dict[str, Any] = json.loads(found)
        return values


def check_header(page: Page, rows: Rows, asked: int) -> None:
    """Rounds, and bytes."""
    shown = facts(page, "header")
    done = rows.one("SELECT COUNT(*) FROM rounds WHERE state = 'committed' AND round < ?", asked)
    assert shown["rounds done"] == f"{done} of {asked}"


def check_round(page: Page, rows: Rows, round_index: int, attempt: int) -> None:
    """The facts of a round that is shown, and what became of each device."""
    states, shown = rows.states(round_index, attempt), facts(page, "#view")
    here = (round_index, attempt)
    counted = rows.one("SELECT COUNT(*) FROM contributions WHERE round = ? AND attempt = ?", *here)
    aside = rows.one(
        "SELECT COUNT(*) FROM quarantine q JOIN assignments a USING (assignment_id) "
        "WHERE a.round = ? AND a.attempt = ?",
        *here,
    )
    expected = {
        "orders": sum(states.values()),
        "reports": states["reported"],
        "counted": counted,
        "refused": states["refused"],
        "too late": states["expired"],
        "rejected": states["rejected"],
        "set aside": aside,
        "at work": states["open"] + states["accepted"],
    }
    assert {name: int(shown[name]) for name in expected} == expected
    reports = {
        device: json.loads(report)
        for device, report in rows.all(
            "SELECT a.device, u.report FROM assignments a JOIN updates u USING (assignment_id) "
            "WHERE a.round = ? AND a.attempt = ?",
            *here,
        )
    }
    became = {
        device: "set aside" if code else "counted" if in_round is not None else state
        for device, state, code, in_round in rows.all(
            "SELECT a.device, a.state, q.code, c.round FROM assignments a LEFT JOIN quarantine q USING (assignment_id) "
            "LEFT JOIN contributions c ON c.assignment_id = a.assignment_id WHERE a.round = ? AND a.attempt = ?",
            *here,
        )
    }
    words = {"expired": "too late", "open": "sent", "accepted": "at work"}
    lines = table(page, "Devices of the round")
    assert sorted(line["Device"] for line in lines) == sorted(became)
    for line in lines:
        state = became[line["Device"]]
        assert line["What became of it"].startswith(words.get(state, state)), line
        report = reports.get(line["Device"])
        assert line["Loss"] == (f"{report['loss']:.4f}" if report else "")
        peak = (report["trainer_peak_bytes"] + report["supervisor_peak_bytes"]) / MIB if report else 0
        assert line["Measured"] == (f"{peak:.1f} MB" if report else "")


def check_memory(page: Page, rows: Rows) -> None:
    """Budget, prediction and measurement of each device that had an order."""
    newest = {
        device: (order, digest)
        for device, order, digest in rows.all(
            "SELECT device, work_order, artifact_digest FROM assignments ORDER BY round, attempt"
        )
    }
    measured = {
        (device, digest): (peak, ms)
        for device, digest, peak, ms in rows.all(
            "SELECT m.device, f.manifest_digest, m.measured_peak, m.step_ms FROM measurements m JOIN artifacts f "
            "USING (export_key)"
        )
    }
    budgets = {
        device: json.loads(profile)["budget_bytes"]
        for device, profile in rows.all("SELECT device, profile FROM profiles")
    }
    for line in table(page, "Memory and step time by device"):
        order, digest = newest[line["Device"]]
        peak, ms = measured.get((line["Device"], digest), (0, None))
        assert line["Predicted"] == shown_memory(msgspec.msgpack.decode(order)["peak_bytes"])
        assert line["Measured"] == (shown_memory(peak) or "-")
        assert line["Budget"] == shown_memory(budgets[line["Device"]])
        assert line["Step measured"] == ("" if ms is None else f"{ms:.2f} ms")


def shown_memory(size: int) -> str:
    """As the page shows bytes of memory."""
    if not size:
        return ""
    return f"{size / MIB:.1f} MB" if size < 100 * MIB else f"{size / MIB:.0f} MB"


def check_results(page: Page, rows: Rows, last_round: int) -> None:
    """Scores by level of the newest round, and bytes by direction and kind."""
    scores = rows.metrics(last_round)["evaluation"]
    lines = table(page, "Scores by capacity level")
    assert {line["Model"].replace("global model", "server") for line in lines} == set(scores)
    for line in lines:
        values = scores[line["Model"].replace("global model", "server")]
        assert line["accuracy"] == f"{values['accuracy']:.4f}"
        assert line["loss"] == f"{values['loss']:.4f}"
    sums = rows.all("SELECT direction, scheme, SUM(payload_bytes), SUM(wire_bytes) FROM traffic GROUP BY 1, 2")
    shown = {
        (line["Direction"], line["Over"]): line["On the wire"] for line in table(page, "Bytes by direction and kind")
    }
    assert shown == {
        ("from devices" if way == "up" else "to devices", scheme.upper()): shown_traffic(wire)
        for way, scheme, _, wire in sums
    }


def shown_traffic(size: int) -> str:
    """As the page shows bytes of traffic."""
    if size >= 1e9:
        return f"{size / 1e9:.2f} GB"
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def check_model(page: Page, rows: Rows) -> None:
    """How many counted updates trained each layer."""
    shown = {line["Layer"]: int(line["Updates"].replace(",", "")) for line in table(page, "Layers")}
    assert {layer: count for layer, count in shown.items() if count} == rows.layers()


def check_events(page: Page, rows: Rows) -> None:
    """Every entry of the audit log."""
    shown = {int(line["Number"]): line["What"] for line in table(page, "Ledger events")}
    assert shown == dict(rows.all("SELECT number, action FROM audit_log"))


def check_fleet(page: Page, rows: Rows) -> None:
    """Reports and orders of each device."""
    expected = {
        device: f"{reported}/{asked}"
        for device, reported, asked in rows.all(
            "SELECT device, SUM(state = 'reported'), COUNT(*) FROM assignments GROUP BY device"
        )
    }
    assert {line["Device"]: line["Reports"] for line in table(page, "Devices")} == expected
