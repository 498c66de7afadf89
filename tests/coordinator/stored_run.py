"""A run on disk, made by hand: one committed round, and one whose two devices were sent work and one has answered."""

from __future__ import annotations

from pathlib import Path

import msgspec

from coordinator.blobs.blob_store import BlobStore
from coordinator.config.canonical import canonical_toml
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment
from coordinator.run_file.loading import load_config_text
from edge.contracts.codec import encode_msgpack
from edge.contracts.plan import BlobRef, Schedule, WorkOrder, assignment_id
from tests.contracts.samples import MANIFEST, REPORT
from tests.federation.small_run import config_text

DEVICES = ("pi-1", "pi-2")


class StoredRun:
    """The ledger at ``place`` and the blobs of a run in ``folder``; ``digests`` by what they are."""

    def __init__(self, folder: Path, place: Path | str | None = None, *, blobs: BlobStore | None = None) -> None:
        self.folder = folder
        self.digests: dict[str, str] = {}
        config = canonical_toml(load_config_text(config_text()))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.toml").write_text(config)
        (folder / "metrics.jsonl").write_text("{}\n")
        self.ledger = Ledger.create(place or folder / "ledger.sqlite", federation="small", config=config, seed=3)
        self.ledger.move_federation("running")
        self.blobs = blobs or BlobStore(folder / "blobs")
        files = tuple(
            msgspec.structs.replace(file, sha256=self.put(f"graph of {file.name}", file.name.encode()))
            for file in MANIFEST.files
        )
        self.put("manifest", msgspec.structs.replace(MANIFEST, files=files).to_bytes())
        self.ledger.artifacts.add(MANIFEST.export_key, self.digests["manifest"])
        for round_index in range(2):
            self.open_round(round_index)
            if round_index == 0:
                self.put("model 0", b"model 0")
                self.ledger.rounds.move(0, 0, "aggregating", participants=DEVICES)
                self.ledger.rounds.move(0, 0, "committed", model_digest=self.digests["model 0"])

    def open_round(self, round_index: int) -> None:
        """Plans a round; of the first one both devices report, of later ones the first device alone."""
        self.put(f"weights {round_index}", b"weights %d" % round_index)
        self.ledger.rounds.plan(
            round_index, 0, deadline_s=60.0, assignments=[self._of(d, round_index) for d in DEVICES]
        )
        self.ledger.rounds.move(round_index, 0, "published")
        self.ledger.rounds.move(round_index, 0, "collecting")
        for device in DEVICES[: 1 if round_index else 2]:
            self.report(device, round_index)

    def put(self, name: str, data: bytes) -> str:
        """A blob with its row."""
        self.digests[name] = self.blobs.put(data)
        self.ledger.blobs.add(self.digests[name], len(data))
        return self.digests[name]

    def damage(self, name: str) -> str:
        """Another last byte; the digest."""
        path = self.blobs.path(self.digests[name])
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        return self.digests[name]

    def _of(self, device: str, round_index: int) -> Assignment:
        weights = self.digests[f"weights {round_index}"]
        order = WorkOrder(
            assignment_id=assignment_id("small", round_index, device, 0),
            federation="small",
            device=device,
            round=round_index,
            attempt=0,
            artifact=BlobRef(self.digests["manifest"], 1, "raw", 1),
            weights=BlobRef(weights, 9, "raw", 9),
            schedule=Schedule(epochs=1),
            batch=16,
            last_batch="drop",
            data_seed=1,
            hyper={},
            upload=("fc1.weight",),
            peak_bytes=100,
        )
        return Assignment(
            assignment_id=order.assignment_id,
            round=round_index,
            attempt=0,
            device=device,
            level="full",
            cut={},
            artifact_digest=self.digests["manifest"],
            weights_digest=weights,
            order=encode_msgpack(order),
        )

    def report(self, device: str, round_index: int) -> None:
        """Records a device's update."""
        data = f"update of {device} in {round_index}".encode()
        digest = self.digests[f"update {device} {round_index}"] = self.blobs.put(data)
        key = assignment_id("small", round_index, device, 0)
        report = msgspec.structs.replace(REPORT, assignment_id=key, device=device, round=round_index)
        self.ledger.updates.record(key, update_digest=digest, size=len(data), report=report)
