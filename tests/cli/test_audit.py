"""``apportion audit``: what it shows and exports, and that it names the entry that is not as it was written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.cli.audit_head import head_values
from coordinator.identity.authority import Authority
from coordinator.ledger.database import statement
from tests.cli.conftest import Command
from tests.coordinator.stored_run import StoredRun


@pytest.fixture
def run(tmp_path: Path) -> Iterator[StoredRun]:
    stored = StoredRun(tmp_path / "run")
    stored.ledger.audit_log.named("pi-2", "over-budget", "19 MB asked for, 4 MB allowed", bytes=19_000_000)
    yield stored
    stored.ledger.close()


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("identity") / "ca"
    Authority.create(folder).close()
    return folder


def exported(run: StoredRun, command: Command, tmp_path: Path) -> Path:
    assert command("audit", "export", run.folder, "--output", tmp_path / "log.jsonl").status == 0
    return tmp_path / "log.jsonl"


def test_show_lists_entries_and_can_be_asked_for_one_device(run: StoredRun, command: Command) -> None:
    shown = command("audit", "show", run.folder).out
    assert "run-begun" in shown
    assert "weights=" in shown
    outcome = command("audit", "show", run.folder, "--device", "pi-2")
    (line, count) = outcome.out.splitlines()
    assert "device-named  device:pi-2  bytes=19000000" in line
    assert "why='19 MB asked for, 4 MB allowed'" in line
    assert count == "1 entries"
    (entry,) = command("audit", "show", run.folder, "--device", "pi-2", "--json").line["entries"]
    assert entry["details"]["what"] == "over-budget"
    assert command("audit", "show", run.folder, "--since", "2999-01-01").out == "0 entries\n"
    assert command("audit", "show", run.folder, "--since", "2h").out == shown
    assert "'yesterday' is no time" in command("audit", "show", run.folder, "--since", "yesterday").err


def test_exported_log_can_be_checked_with_sha256_alone(run: StoredRun, command: Command, tmp_path: Path) -> None:
    previous = "0" * 64
    for line in exported(run, command, tmp_path).read_bytes().splitlines():
        body, _, digest = line.partition(b',"digest":"')
        assert hashlib.sha256(body + b"}").hexdigest() == digest.decode().removesuffix('"}')
        assert json.loads(line)["previous"] == previous
        previous = json.loads(line)["digest"]
    assert previous == run.ledger.audit_log.head().digest


def test_whole_log_verifies_and_each_change_is_found_at_its_entry(
    run: StoredRun, command: Command, tmp_path: Path
) -> None:
    path = exported(run, command, tmp_path)
    outcome = command("audit", "verify", path, "--json")
    assert (outcome.status, outcome.line["findings"]) == (0, [])
    assert outcome.line["head"] == run.ledger.audit_log.head().digest
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 3
    broken = {
        "entry 2 (round-committed) was changed": [lines[0], lines[1].replace(b"round:0.0", b"round:0.1"), lines[2]],
        "entry 2 is missing: entry 3 follows entry 1": [lines[0], lines[2]],
        "entry 2 (round-committed) stands behind entry 3": [lines[0], lines[2], lines[1]],
        "line 2 is no entry": [lines[0], lines[1].replace(b'":"', b'": "', 1), lines[2]],
        "line 3 is no entry": [*lines[:2], lines[2][:-40]],
    }
    for finding, changed in broken.items():
        path.write_bytes(b"".join(changed))
        outcome = command("audit", "verify", path, "--json")
        assert outcome.status == 1
        assert any(words.startswith(finding) for words in outcome.line["findings"]), outcome.line["findings"]


def test_tail_that_was_cut_shows_against_the_signed_head(
    run: StoredRun, command: Command, tmp_path: Path, identity: Path
) -> None:
    kept = run.folder / "summary.json"
    kept.write_text(json.dumps({"rounds": 1, "audit_log": head_values(run.ledger, str(identity))}))
    path, keys = exported(run, command, tmp_path), identity / "signing.pub"
    outcome = command("audit", "verify", path, "--head", kept, "--trust", keys, "--json")
    assert (outcome.status, outcome.line["signed"]) == (0, True)
    assert (
        "is the head that was kept, signed by" in command("audit", "verify", path, "--head", kept, "--trust", keys).out
    )
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    assert command("audit", "verify", path).status == 0  # by itself it cannot show
    cut = command("audit", "verify", path, "--head", kept, "--json")
    assert cut.line["findings"] == ["the log ends at entry 2, its head is entry 3: 3 was cut off"]
    run.ledger.audit_log.add("run-resumed")  # a log that only grew since
    assert command("audit", "verify", run.folder).status == 0
    kept.write_text(kept.read_text().replace('"entries": 3', '"entries": 2'))
    forged = command("audit", "verify", path, "--head", kept, "--trust", keys, "--json")
    assert forged.line["findings"][0].startswith("entry 2 has digest")
    assert forged.line["findings"][1].endswith("has signed the head of entry 2")


def test_fsck_names_the_entry_that_was_changed(run: StoredRun, command: Command) -> None:
    with run.ledger._file.transaction() as sql:
        sql.execute(statement("UPDATE audit_log SET subject = 'device:pi-1' WHERE number = 3"))
    outcome = command("fsck", run.folder, "--json")
    assert outcome.status == 1
    (finding,) = outcome.line["findings"]
    assert finding["kind"] == "audit-log"
    assert finding["detail"].startswith("entry 3 (device-named) was changed")
    assert command("audit", "verify", run.folder).status == 1


def test_csv_is_for_spreadsheets_and_holds_no_formula(run: StoredRun, command: Command) -> None:
    run.ledger.audit_log.add("tested", "=1+1")
    lines = command("audit", "export", run.folder, "--format", "csv").out.splitlines()
    assert lines[0] == "number,time,actor,action,subject,details,previous,digest"
    assert "'=1+1" in lines[4]


def test_operators_are_named_with_their_command(run: StoredRun, command: Command) -> None:
    assert command("pause", run.folder).status == 0
    entry = run.ledger.audit_log.head()
    assert (entry.action, entry.values()["value"]) == ("run-asked", "pause")
    assert entry.actor.startswith("operator:")
    assert entry.actor.endswith(", apportion pause")


def test_identity_has_a_log_of_what_was_issued_and_changed(tmp_path: Path, command: Command) -> None:
    folder = tmp_path / "ca"
    assert command("ca", "init", folder).status == 0
    assert command("ca", "signing-key", "new", "--dir", folder).status == 0
    assert command("ca", "signing-key", "retire", "--dir", folder).status == 0
    with Authority(folder) as authority:
        authority.issue_coordinator("demo")
        authority.revoke("@demo", reason="lost")
    found = command("audit", "show", folder, "--json").line["entries"]
    assert [entry["action"] for entry in found] == [
        "log-begun",
        "signing-key-added",
        "signing-key-retired",
        "certificate-issued",
        "certificate-revoked",
    ]
    assert found[1]["actor"].startswith("operator:")
    assert found[4]["details"]["why"] == "lost"
    assert command("audit", "verify", folder).status == 0


def test_what_is_no_log_is_refused_with_its_name(tmp_path: Path, command: Command) -> None:
    outcome = command("audit", "verify", tmp_path / "none.jsonl", "--json")
    assert (outcome.status, outcome.error["code"]) == (2, "bad-config")
    (tmp_path / "summary.json").write_text("[1]")
    (tmp_path / "log.jsonl").write_bytes(b"")
    outcome = command("audit", "verify", tmp_path / "log.jsonl", "--head", tmp_path / "summary.json", "--json")
    assert "holds no head of an audit log" in outcome.error["message"]
