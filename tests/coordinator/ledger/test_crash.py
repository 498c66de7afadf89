"""A process killed while it writes: what was acknowledged is there, and nothing is there by halves."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coordinator.blobs.blob_store import BlobStore
from coordinator.ledger.ledger import Ledger
from tests.coordinator.ledger.test_rounds import FEDERATION, assignment, collecting, report

ROOT = Path(__file__).parents[3]

WRITER = """
import sys
from pathlib import Path
from coordinator.blobs.blob_store import BlobStore
from coordinator.ledger.ledger import Ledger
from tests.coordinator.ledger.test_rounds import report
where = sys.argv[2] if "://" in sys.argv[2] else Path(sys.argv[2])
with Ledger.open(where, federation="fed") as ledger:
    blobs = BlobStore(Path(sys.argv[1]))
    for entry in ledger.assignments.of_attempt(0, 0):
        data = entry.assignment_id.encode() * 2000
        digest = blobs.put(data)
        ledger.updates.record(entry.assignment_id, update_digest=digest, size=len(data), report=report(entry))
        print(entry.assignment_id, flush=True)
"""

COUNTER = """
import sys
from pathlib import Path
from coordinator.ledger.ledger import Ledger
where = sys.argv[2] if "://" in sys.argv[2] else Path(sys.argv[2])
with Ledger.open(where, federation="fed") as ledger:
    print("ready", flush=True)
    sys.stdin.readline()
    ledger.rounds.move(0, 0, "aggregating", participants=ledger.updates.devices(0, 0))
    print("done", flush=True)
"""


def started(program: str, tmp_path: Path, where: Path | str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, str(tmp_path / "blobs"), str(where)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("acknowledged_before_kill", [1, 7, 30])
def test_killed_writer_loses_nothing_it_acknowledged(
    acknowledged_before_kill: int, ledger_place: Path | str, tmp_path: Path
) -> None:
    entries = [assignment(f"d{number:04}") for number in range(2000)]
    with Ledger.create(ledger_place, federation=FEDERATION, config="", seed=0) as ledger:
        ledger.rounds.plan(0, 0, deadline_s=1.0, assignments=entries)
        ledger.blobs.add(entries[0].weights_digest, 1)
    with started(WRITER, tmp_path, ledger_place) as writer:
        assert writer.stdout is not None
        acknowledged = [writer.stdout.readline().strip() for _ in range(acknowledged_before_kill)]
        time.sleep(0.003)
        writer.send_signal(signal.SIGKILL)
        acknowledged += writer.stdout.read().split()
    assert len(acknowledged) < len(entries)

    with Ledger.open(ledger_place, federation=FEDERATION) as ledger:
        blobs = BlobStore(tmp_path / "blobs")
        recorded = ledger.updates.of_attempt(0, 0)
        reported = ledger.assignments.of_attempt(0, 0, "reported")
        assert [u.assignment for u in recorded] == list(reported)
        assert set(acknowledged) <= {entry.assignment_id for entry in reported}
        for update in recorded:
            blobs.verify(update.update_digest)
        assert len(set(blobs.digests()) - ledger.blobs.sizes().keys()) <= 1
        assert ledger.audit.findings() == []
        again = recorded[0].assignment
        assert not ledger.updates.record(again.assignment_id, update_digest="f" * 64, size=1, report=report(again))


@pytest.mark.parametrize("after_s", [0.0, 0.002, 0.004, 0.008, 0.016])
def test_killed_while_it_counts_has_counted_all_or_nothing(
    after_s: float, ledger_place: Path | str, tmp_path: Path
) -> None:
    with Ledger.create(ledger_place, federation=FEDERATION, config="", seed=0) as ledger:
        entries = collecting(ledger, *(f"d{number:03}" for number in range(40)))
        for entry in entries:
            ledger.updates.record(entry.assignment_id, update_digest=entry.assignment_id, size=1, report=report(entry))
    with started(COUNTER, tmp_path, ledger_place) as counter:
        assert counter.stdout is not None
        assert counter.stdin is not None
        assert counter.stdout.readline() == "ready\n"
        counter.stdin.write("go\n")
        counter.stdin.flush()
        time.sleep(after_s)
        counter.send_signal(signal.SIGKILL)
        said = counter.stdout.read()
    with Ledger.open(ledger_place, federation=FEDERATION) as ledger:
        (found,) = ledger.rounds.all()
        counted = len(ledger.updates.counted(0, 0))
        assert (found.state, counted, len(found.participants)) in (("collecting", 0, 0), ("aggregating", 40, 40))
        assert counted or not said
        assert ledger.audit.findings() == []
