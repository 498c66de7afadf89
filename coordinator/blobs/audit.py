"""Holds a run's ledger and its blobs against each other: what is damaged, what it was for, and what mends it.

It changes nothing but in :func:`repair`, which loses no update that is whole and lets none be counted twice: damaged
blobs are set aside, and an open attempt that needs one is given up, so that its round is repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.blobs.blob_store import BlobStore
from coordinator.language.source import names_language_model
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Round
from edge.contracts.errors import ApportionError, ArtifactCorrupt
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.plan import read_order


@dataclass(frozen=True)
class Fault:
    """Something that is not as it should be.

    Attributes:
        kind: ``ledger``, ``audit-log``, ``blob`` or ``run-dir``.
        subject: a blob's digest, a file's name, or empty.
        step: what mends it.
    """

    kind: str
    subject: str
    detail: str
    step: str


@dataclass
class Needs:
    """What blobs are for, by digest.

    Attributes:
        model: of the last committed round.
        open: what the open attempt, or a later one, cannot do without.
        rebuilding: what the last model can be made again from.
        waiting: updates that a later round may count.
    """

    model: str = ""
    open: dict[str, str] = field(default_factory=dict)
    rebuilding: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)

    def of(self, digest: str) -> str:
        """What a blob is for, in words."""
        if digest == self.model:
            return "the current model"
        return (
            self.open.get(digest) or self.rebuilding.get(digest) or self.waiting.get(digest) or "kept for later rounds"
        )


def needs_of(ledger: Ledger, blobs: BlobStore) -> Needs:
    """What the blobs of a run are for."""
    needs = Needs()
    committed = [r for r in ledger.rounds.all() if r.state == "committed"]
    if committed:
        last = committed[-1]
        needs.model = last.model_digest
        for update in ledger.updates.counted(last.round, last.attempt):
            needs.rebuilding[update.update_digest] = f"update of {update.assignment.device}, round {last.round + 1}"
        if committed[:-1]:
            needs.rebuilding[committed[-2].model_digest] = f"the model after round {committed[-2].round + 1}"
    for update in ledger.updates.waiting():
        where = f"round {update.assignment.round + 1}"
        needs.waiting[update.update_digest] = f"update of {update.assignment.device}, {where}, not counted yet"
    attempt = ledger.rounds.open()
    if attempt is not None:
        needs.open |= dict(_needed_by(ledger, blobs, attempt))
    return needs


def _needed_by(ledger: Ledger, blobs: BlobStore, current: Round) -> Iterator[tuple[str, str]]:
    """What the open attempt needs: its updates, and until it is aggregated what its devices are sent."""
    counted = ledger.updates.counted(current.round, current.attempt)
    for update in (*counted, *ledger.updates.of_attempt(current.round, current.attempt)):
        yield update.update_digest, f"update of {update.assignment.device}, round {update.assignment.round + 1}"
    where = f"round {current.round + 1}"
    for entry in ledger.assignments.of_attempt(current.round, current.attempt):
        order = read_order(entry.order)
        for ref in order.standing_blobs:
            what = "constants" if ref == order.constants else "tokenizer"
            yield ref.digest, f"{what} of {entry.device}, {where}"
        if current.state == "aggregating" or entry.state not in ("open", "accepted"):
            continue
        yield order.weights.digest, f"weights of {entry.device}, {where}"
        yield order.artifact.digest, f"artifact of {entry.device}, {where}"
        for digest in _files_of(blobs, order.artifact.digest):
            yield digest, f"artifact of {entry.device}, {where}"


def _files_of(blobs: BlobStore, manifest: str) -> list[str]:
    try:
        return [file.sha256 for file in ArtifactManifest.from_bytes(blobs.read(manifest)).files]
    except (ApportionError, OSError):
        return []  # the manifest itself is found damaged


def blob_faults(ledger: Ledger, blobs: BlobStore, *, deep: bool) -> list[Fault]:
    """Blobs with a row that are missing, of another size or, with ``deep``, of other bytes."""
    rows, stored = ledger.blobs.sizes(), {entry.digest: entry.size for entry in blobs.entries()}
    needs = needs_of(ledger, blobs)
    wanted = {needs.model: -1} if needs.model and needs.model not in rows else {}
    faults = []
    for digest, size in sorted({**rows, **wanted}.items()):
        if problem := _problem(blobs, digest, size, stored.get(digest), deep=deep):
            faults.append(Fault("blob", digest, f"{needs.of(digest)}: {problem}", ""))
    broken = {fault.subject for fault in faults}
    return [Fault(f.kind, f.subject, f.detail, _step(f.subject, needs, broken)) for f in faults]


def _problem(blobs: BlobStore, digest: str, size: int, stored: int | None, *, deep: bool) -> str:
    if stored is None:
        return "missing"
    if size >= 0 and stored != size:
        return f"{stored} bytes, {size} expected"
    if deep:
        try:
            blobs.verify_at_rest(digest)
        except ArtifactCorrupt:
            return "other bytes than were stored"
    return ""


def _step(digest: str, needs: Needs, broken: set[str]) -> str:
    if digest == needs.model:
        if lost := sorted(needs.rebuilding[d] for d in broken & needs.rebuilding.keys()):
            return f"put it back from a backup: it cannot be made again without {lost[0]}"
        return "resume makes it again from the round before"
    if digest in needs.open:
        return "--repair sets it aside and gives the attempt up; resume repeats the round"
    if digest in needs.waiting:
        return "--repair sets it aside; it is never counted, and its device trains again in a later round"
    if digest in needs.rebuilding:
        return "--repair sets it aside; nothing needs it while the current model is whole"
    return "--repair sets it aside; what needs it makes it again"


def run_dir_faults(run_dir: Path, ledger: Ledger) -> list[Fault]:
    """Files of a run directory that should be there and are not."""
    expected = {"config.toml": "resume writes it again"}
    if ledger.rounds.last_committed() is not None:
        expected["metrics.jsonl"] = "its lines are lost; what rounds measured is in the ledger, resume goes on with it"
    if ledger.federation().state == "finished":
        for name in ("summary.json", "report.html", "checkpoints/final.safetensors"):
            expected[name] = "resume writes it again"
        if not names_language_model(ledger.federation().config):  # of its factors and base one is made when deployed
            expected["checkpoints/final.onnx"] = "resume writes it again"
    return [Fault("run-dir", name, "missing", step) for name, step in expected.items() if not (run_dir / name).exists()]


def repair(ledger: Ledger, blobs: BlobStore, faults: list[Fault]) -> list[str]:
    """Sets damaged blobs aside and gives up the attempt that needs one; what was done, in words.

    The current model stays where it is: only resume can make it again, and a backup may be put in its place.
    """
    needs, done = needs_of(ledger, blobs), []
    damaged = [fault.subject for fault in faults if fault.kind == "blob" and fault.subject != needs.model]
    attempt = ledger.rounds.open()
    hit = sorted(set(damaged) & needs.open.keys())
    if attempt is not None and hit:
        # First: an attempt must not be aggregated without the blob that is about to go.
        reason = f"{needs.open[hit[0]]}: its blob {hit[0][:12]} was damaged"
        ledger.rounds.give_up(attempt.round, attempt.attempt, reason=reason)
        done.append(
            f"round {attempt.round + 1}, attempt {attempt.attempt + 1} given up ({reason}); resume repeats the round"
        )
    for digest in damaged:
        kept = blobs.set_aside(digest)
        done.append(f"blob {digest[:12]} set aside as {kept}" if kept.exists() else f"blob {digest[:12]} forgotten")
    ledger.blobs.forget(damaged)
    return done
