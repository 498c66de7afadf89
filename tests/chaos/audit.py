"""What came of a run: every acknowledged update recorded, each counted once, the model the one of the undisturbed run.

Three books are compared: what travelled (the harness saw every acknowledgement), what the ledger says, and the bytes
of the blobs. Means are computed again here, from the updates themselves, in float64 and device-id order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from coordinator.ledger.ledger import Ledger
from edge.contracts.tensor_file import decode_tensors
from tests.chaos.liars.kinds import Liar
from tests.chaos.liars.naming import Naming, naming_of
from tests.chaos.schedule import ROUNDS, Schedule
from tests.chaos.site import COORDINATOR_LOG, Site, device_names
from tests.chaos.story import Story


@dataclass
class Verdict:
    """What was found; every list holds one line per finding, and all are empty after a good run."""

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    naming: Naming = field(default_factory=Naming)

    @property
    def is_good(self) -> bool:
        """Nothing was found."""
        naming = self.naming
        said = naming.unnamed or naming.late or naming.honest_barred
        return not (self.lost or self.duplicated or self.differing or self.trouble or said)


def recorded(site: Site) -> dict[str, str] | None:
    """Assignment id -> digest of every update in the ledger; None where none is yet, or its server is away."""
    if not site.has_run():
        return None
    with site.open_ledger() as ledger:
        return {
            u.assignment.assignment_id: u.update_digest
            for r in ledger.rounds.all()
            for u in ledger.updates.of_attempt(r.round, r.attempt)
        }


def audit(site: Site, story: Story, planned: Schedule, reference: bytes | None) -> Verdict:
    """The verdict on a run that is over.

    Args:
        reference: ``final.safetensors`` of the undisturbed run; None to leave that out.
    """
    found = Verdict(trouble=list(story.trouble))
    found.lost += [f"update {i[:12]} was in the ledger before a coordinator ended" for i in story.lost_between]
    try:
        with site.open_ledger() as ledger:
            _audit_ledger(ledger, story, planned, found)
            _audit_liars(ledger, site, story, planned.liars, found)
            if planned.mode == "synchronous":
                _audit_sums(ledger, site, found)
    except Exception as error:
        found.trouble.append(f"the ledger cannot be audited: {type(error).__name__}: {error}")
    final = story.finished_in / "checkpoints" / "final.safetensors"
    if reference is not None and not story.trouble and (not final.exists() or final.read_bytes() != reference):
        found.differing.append("final.safetensors is not the one of the undisturbed run")
    return found


def _audit_liars(ledger: Ledger, site: Site, story: Story, liars: Sequence[Liar], found: Verdict) -> None:
    log = "".join(path.read_text(errors="replace") for path in sorted(site.logs.glob(COORDINATOR_LOG)))
    found.naming = naming_of(ledger, liars, device_names(), log, heard=story.heard)
    found.differing += found.naming.counted


def _audit_ledger(ledger: Ledger, story: Story, planned: Schedule, found: Verdict) -> None:
    found.trouble += [f"audit log: {line}" for line in ledger.audit_log.checked().findings]
    for line in ledger.audit.findings():
        (found.duplicated if "more than once" in line else found.lost if "no update" in line else found.trouble).append(
            line
        )
    if ledger.federation().state != "finished":
        found.trouble.append(f"the run is {ledger.federation().state}, not finished")
    committed = [r.round for r in ledger.rounds.all() if r.state == "committed"]
    if committed != list(range(ROUNDS[planned.mode])):
        found.trouble.append(f"committed rounds are {committed}")
    rows, counts = _rows_and_counts(ledger)
    found.duplicated += [f"update {i[:12]} has {n} rows" for i, n in rows.items() if n > 1]
    found.duplicated += [f"update {i[:12]} is counted by {n} rounds" for i, n in counts.items() if n > 1]
    found.lost += [f"update {i[:12]} was acknowledged and has no row" for i in story.acknowledged if i not in rows]
    if ledger.federation().state != "finished":
        return
    excused = _excused(ledger)
    found.lost += [f"update {i[:12]} is recorded and not counted" for i in rows if i not in counts and i not in excused]


def _rows_and_counts(ledger: Ledger) -> tuple[Counter[str], Counter[str]]:
    """How many rows each update has, and how many rounds count it."""
    rows, counts = Counter[str](), Counter[str]()
    for attempt in ledger.rounds.all():
        key = attempt.round, attempt.attempt
        rows.update(u.assignment.assignment_id for u in ledger.updates.of_attempt(*key))
        counted = ledger.updates.counted(*key)
        if attempt.state == "committed":
            counts.update(u.assignment.assignment_id for u in counted)
    return rows, counts


def _excused(ledger: Ledger) -> set[str]:
    """Recorded updates that no round counts, for a reason that the ledger knows."""
    excused = {q.assignment_id for q in ledger.quarantine.all()}
    excused |= {u.assignment.assignment_id for u in ledger.updates.waiting()} if _is_buffered(ledger) else set()
    for attempt in ledger.rounds.all():
        if attempt.state == "abandoned":  # its round was done again, from new orders
            excused |= {u.assignment.assignment_id for u in ledger.updates.of_attempt(attempt.round, attempt.attempt)}
    return excused


def _is_buffered(ledger: Ledger) -> bool:
    """Whether updates may arrive after the last version was made, and wait for one that never comes."""
    return 'mode = "buffered"' in ledger.federation().config


def _audit_sums(ledger: Ledger, site: Site, found: Verdict) -> None:
    for attempt in ledger.rounds.all():
        if attempt.state != "committed":
            continue
        where = f"round {attempt.round}.{attempt.attempt}"
        model = _tensors(site, attempt.model_digest)
        updates = [
            u
            for u in ledger.updates.of_attempt(attempt.round, attempt.attempt)
            if u.assignment.device in attempt.participants
        ]
        weights = [u.report.num_examples for u in updates]
        tensors = [_tensors(site, u.update_digest) for u in updates]
        if _is_mean(model, tensors, weights):
            continue
        for index, update in enumerate(updates):
            if _is_mean(model, [*tensors, tensors[index]], [*weights, weights[index]], order=index):
                found.duplicated.append(f"{where}: the update of {update.assignment.device} is summed twice")
                break
            rest = [i for i in range(len(updates)) if i != index]
            if rest and _is_mean(model, [tensors[i] for i in rest], [weights[i] for i in rest]):
                found.lost.append(f"{where}: the update of {update.assignment.device} participates and is not summed")
                break
        else:
            found.differing.append(f"{where}: the committed model is not the mean of its updates")


def _is_mean(
    model: dict[str, np.ndarray], tensors: list[dict[str, np.ndarray]], weights: list[int], order: int | None = None
) -> bool:
    """Whether ``model`` is the weighted mean, to the last bit; to rounding where the order of summing is not known."""
    total = float(sum(weights))
    for name, value in model.items():
        mean = (
            sum(np.multiply(t[name], float(w), dtype=np.float64) for t, w in zip(tensors, weights, strict=True)) / total
        )
        mean = mean.astype(value.dtype)
        same = np.array_equal(mean, value) if order is None else np.allclose(mean, value, rtol=1e-6, atol=1e-9)
        if not same:
            return False
    return True


def _tensors(site: Site, digest: str) -> dict[str, np.ndarray]:
    path = site.aside / digest
    if not path.exists():
        path = site.blobs / digest[:2] / digest
    return {name: np.array(value) for name, value in decode_tensors(path.read_bytes(), where=digest[:12]).items()}
