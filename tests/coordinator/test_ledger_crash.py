"""A process killed while it writes: what was acknowledged is there, and nothing is there by halves."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coordinator.blob_store import BlobStore
from coordinator.ledger import Ledger
from tests.coordinator.test_ledger_rounds import assignment, report

WRITER = """
import sys
from pathlib import Path
from coordinator.blob_store import BlobStore
from coordinator.ledger import Ledger
from tests.coordinator.test_ledger_rounds import report
folder = Path(sys.argv[1])
with Ledger.open(folder / "ledger.sqlite") as ledger:
    blobs = BlobStore(folder / "blobs")
    for entry in ledger.assignments(0, 0):
        data = entry.assignment_id.encode() * 2000
        digest = blobs.put(data)
        ledger.record_update(entry.assignment_id, update_digest=digest, size=len(data), report=report(entry))
        print(entry.assignment_id, flush=True)
"""


@pytest.mark.parametrize("acknowledged_before_kill", [1, 7, 30])
def test_killed_writer_loses_nothing_it_acknowledged(acknowledged_before_kill: int, tmp_path: Path) -> None:
    entries = [assignment(f"d{number:04}") for number in range(2000)]
    with Ledger.create(tmp_path / "ledger.sqlite", federation="fed", config="", seed=0) as ledger:
        ledger.plan_round(0, 0, deadline_s=1.0, assignments=entries)
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        acknowledged = [writer.stdout.readline().strip() for _ in range(acknowledged_before_kill)]
        time.sleep(0.003)
        writer.send_signal(signal.SIGKILL)
        acknowledged += writer.stdout.read().split()
    assert len(acknowledged) < len(entries)

    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        blobs = BlobStore(tmp_path / "blobs")
        recorded = ledger.updates(0, 0)
        reported = ledger.assignments(0, 0, "reported")
        assert [u.assignment for u in recorded] == list(reported)
        assert set(acknowledged) <= {entry.assignment_id for entry in reported}
        for update in recorded:
            blobs.verify(update.update_digest)
        assert len(blobs.garbage(ledger.blobs())) <= 1
        again = recorded[0].assignment
        assert not ledger.record_update(again.assignment_id, update_digest="f" * 64, size=1, report=report(again))
