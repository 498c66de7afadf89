"""Masked rounds as a curious coordinator, colluding members and the broker see them together, and what they make of it.

Real maskers with their files, the real handler with its ledger; every message is handed over by the play, which keeps a
copy, as a broker would. The attacker takes off every mask whose seed its shares and keys give, and compares what is
left of all uploads and sums, attempt with attempt and run with run, with every single update of an honest device.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment
from coordinator.privacy.masking_records import Decided
from edge.contracts.errors import MessageRejected
from edge.contracts.masking import Complaint, Mail, Member, Opening, Proceed, Reveal, Revealed, Roster, Shares
from edge.contracts.plan import BlobRef, assignment_id
from edge.masking.commitments import unpacked
from edge.masking.keys import agree, pair_purpose, share_purpose
from edge.masking.numbers import add_masks, masked_update
from edge.masking.shares import SHARE_BYTES, recover
from edge.supervisor.assignment import Assignment as Assigned
from edge.supervisor.masking_state import MaskingState
from tests.coordinator.privacy.test_masking_desk import Site
from tests.edge.masking.masking_device import MASKING, Device

ENTRIES = 20_000
"""Of an update: by chance a correlation is some 0.007, and one of a million below 0.04."""

Vector = np.ndarray
Where = tuple[str, int, int]
"""Run, round and attempt."""


@dataclass
class Seen:
    """All that the three know of one attempt."""

    where: Where
    threshold: int
    members: tuple[Member, ...] = ()
    uploads: dict[str, Vector] = field(default_factory=dict)
    reported: tuple[str, ...] = ()
    states: dict[str, MaskingState] = field(default_factory=dict)
    shares: dict[str, Shares] = field(default_factory=dict)
    openings: list[tuple[str, Opening]] = field(default_factory=list)
    revealed: dict[str, Revealed] = field(default_factory=dict)

    def identity(self, device: str) -> str:
        return assignment_id("fed", self.where[1], device, self.where[2], self.where[0])

    def secret(self, of: str, kind: int) -> bytes | None:
        """The self mask (0) or masking key (1) of a device from every share that was seen; None for too few."""
        number = {member.device: index + 1 for index, member in enumerate(self.members)}
        part = slice(kind * SHARE_BYTES, (kind + 1) * SHARE_BYTES)
        found: dict[int, bytes] = {}
        for device, state in self.states.items():
            whole = state.own if device == of else (state.received or {}).get(of, b"")
            if whole:
                found[number[device]] = whole[part]
        for sender, opening in self.openings:
            if sender == of and of not in self.states:
                public = next(m.sharing for m in self.members if m.device == opening.receiver)
                purpose = share_purpose(self.identity(of), self.identity(opening.receiver))
                parcel = self.shares[of].sealed[opening.receiver]
                found[number[opening.receiver]] = unpacked(opening.key, public, purpose, parcel, where=of)[part]
        for device, told in self.revealed.items():
            given = (told.self_masks, told.masking_keys)[kind]
            if of in given:
                found[number[device]] = given[of]
        return recover(found, self.threshold) if len(found) >= self.threshold else None

    def stripped(self) -> dict[str, Vector]:
        """Every upload without the masks whose seeds are known."""
        keys = {m.device: self.secret(m.device, 1) for m in self.members}
        keys |= {device: state.masking_key for device, state in self.states.items()}
        public = {member.device: member.masking for member in self.members}
        left = {}
        for device, upload in self.uploads.items():
            total = upload.copy()
            own = self.states[device].self_mask if device in self.states else self.secret(device, 0)
            if own:
                add_masks(total, "w", [own], sign=-1)
            for other in public:
                key = keys[device] or keys[other]
                if other == device or not key:
                    continue
                theirs = public[other] if keys[device] else public[device]
                seed = agree(key, theirs, pair_purpose(self.identity(device), self.identity(other)))
                add_masks(total, "w", [seed], sign=-1 if other > device else 1)
            left[device] = total
        return left


class Curious:
    """The devices of a federation, over all runs: ``honest`` ones and those that collude."""

    def __init__(self, folder: Path, honest: Sequence[str], colluding: Sequence[str]) -> None:
        self.folder, self.honest, self.colluding = folder, tuple(honest), frozenset(colluding)
        self.devices = {name: Device(folder / name, name) for name in (*honest, *colluding)}
        self.seen: list[Seen] = []
        self.single: dict[str, list[Vector]] = {name: [] for name in honest}
        self.scale, self.opened_mask_on = 1.0, False
        self._sites: dict[str, Site] = {}

    def forget_runs(self) -> None:
        """A run of the same name begins: there is a new ledger, and devices have the secrets of no order."""
        self._sites.clear()
        for device in self.devices.values():
            device.masker._files.forget()
            device.masker = device.started()

    def update_of(self, where: Where, device: str) -> Vector:
        """The same in every attempt at a round, so that a difference of two attempts is something of it."""
        seed = [int(where[0] or "0", 16) % 2**32, where[1], round(10 * self.scale), *device.encode()]
        return np.random.default_rng(seed).normal(size=ENTRIES) * 0.01 * self.scale

    def attempt(
        self,
        where: Where,
        names: Sequence[str],
        *,
        weights: str = "w",
        spoils: tuple[str, str] | None = None,
        complains: tuple[str, str] | None = None,
        is_withheld: bool = False,
        vanish: Sequence[str] = (),
        answers: int | None = None,
    ) -> Seen:
        """One attempt.

        Args:
            spoils: (liar, victim) of a parcel of noise; complains: (who, about whom) a complaint without reason.
            is_withheld: the broker keeps complaints back.
            vanish: devices whose upload the broker has and the coordinator never sees.
            answers: how many answers the coordinator gets; the broker has them all.
        """
        able = [name for name in sorted(names) if self._takes(where, name, weights)]
        threshold = len(able) // 2 + 1
        seen = Seen(where, threshold)
        self.seen.append(seen)
        site = self._site(where, able)
        devices = {name: self.devices[name] for name in able}
        if len(devices) - len(self.colluding & {*able}) < 3:
            return seen  # too few are left that may be asked
        for name, device in devices.items():
            device.masker.tick(device.order, 10.0)
            site.hear(name, "keys", device.sent["keys"])
        self._decide(site, where, "roster", Decided(tuple(devices), threshold))
        seen.members = site.handler.members(*where[1:])
        for name, device in devices.items():
            device.tell("roster", Roster(seen.identity(name), threshold, seen.members))
            device.masker.tick(device.order, 20.0)
            shares = device.sent["shares"]
            if spoils is not None and name == spoils[0]:
                noise = shares.sealed[spoils[1]][:32] + bytes(len(shares.sealed[spoils[1]]) - 32)
                shares = msgspec.structs.replace(shares, sealed={**shares.sealed, spoils[1]: noise})
            seen.shares[name] = shares
            site.hear(name, "shares", shares)
        self._decide(site, where, "mail", Decided(tuple(devices), threshold))
        complaints = [] if complains is None else [(complains[0], Complaint(seen.identity(complains[0]), complains[1]))]
        for name, device in devices.items():
            boxes = {sender: shares.sealed[name] for sender, shares in seen.shares.items() if sender != name}
            try:
                device.tell("mail", Mail(seen.identity(name), boxes))
            except MessageRejected:
                device.masker.tick(device.order, 40.0)
                complaints.append((name, device.sent["complaint"]))
            if name in self.colluding:
                seen.states[name] = device.masker._known(seen.identity(name))
        if complaints and not is_withheld:
            self._judge(site, seen, complaints)
        else:
            quiet = {name for name, _ in complaints}
            self._mask(site, seen, tuple(n for n in devices if n not in quiet), vanish, answers)
        return seen

    def _takes(self, where: Where, name: str, weights: str) -> bool:
        """Whether a device takes the order; who colludes takes every one, and answers whatever it is asked."""
        device = self.devices[name]
        device.order = msgspec.structs.replace(
            device.order,
            assignment_id=assignment_id("fed", where[1], name, where[2], where[0]),
            run=where[0],
            round=where[1],
            attempt=where[2],
            weights=BlobRef(weights * 64, 1, "raw", 1),
        )
        if name in self.colluding:
            device.masker._files.told = lambda: {}  # type: ignore[method-assign]
        return device.masker.refusal(Assigned.taken(device.order)) is None

    def _judge(self, site: Site, seen: Seen, complaints: Sequence[tuple[str, Complaint]]) -> None:
        for name, complaint in complaints:
            site.hear(name, "complaint", complaint)
        before = {name: self.devices[name].masker._known(seen.identity(name)) for name in seen.shares}
        accused, _, dispute = next(told for told in reversed(site.told.messages) if told[1] == "dispute")
        self.devices[accused].tell("dispute", dispute)
        opening = self.devices[accused].sent["opening"]
        seen.openings.append((accused, opening))
        site.hear(accused, "opening", opening)
        if self.opened_mask_on:
            self.devices[accused].masker._save(before[accused])
        try:  # said by nobody who keeps to the protocol; a broker cannot sign it
            self.devices[accused].tell("proceed", Proceed(seen.identity(accused)))
        except MessageRejected:
            return
        self._upload(seen, accused)

    def _mask(self, site: Site, seen: Seen, able: tuple[str, ...], vanish: Sequence[str], answers: int | None) -> None:
        self._decide(site, seen.where, "proceed", Decided(able, seen.threshold))
        for name in able:
            self.devices[name].tell("proceed", Proceed(seen.identity(name)))
            self._upload(seen, name)
        reported = tuple(name for name in able if name not in vanish)
        seen.reported = reported
        dropped = tuple(name for name in seen.shares if name not in reported)
        self._decide(site, seen.where, "reveal", Reveal("", reported, dropped))
        for name in reported:
            try:
                self.devices[name].tell("reveal", Reveal(seen.identity(name), reported, dropped))
            except MessageRejected:
                continue
            told = self.devices[name].sent["revealed"]
            seen.revealed[name] = told
            if answers is None or len(site.rows("revealed")) < answers:
                site.hear(name, "revealed", told)

    def _upload(self, seen: Seen, name: str) -> None:
        device = self.devices[name]
        seeds = device.masker.seeds(device.order)
        assert seeds is not None
        update = self.update_of(seen.where, name).astype(np.float32)
        masked = masked_update(
            ["w"], {"w": update}.__getitem__, {"w": np.zeros_like(update)}, MASKING, seeds, num_examples=10
        )
        seen.uploads[name] = masked["w"].view(np.uint32)
        if name in self.single:
            self.single[name].append(update)

    def _decide(self, site: Site, where: Where, kind: str, body: msgspec.Struct) -> None:
        site.ledger.masking.add(*where[1:], "", kind, msgspec.msgpack.encode(body))

    def _site(self, where: Where, names: Sequence[str]) -> Site:
        run = where[0]
        if run not in self._sites:
            path = self.folder / f"ledger-{len(self.seen)}.sqlite"
            ledger = Ledger.create(path, federation="fed", config="", seed=0)
            ledger.nonce = run
            for digest in ("w", "m"):
                ledger.blobs.add(digest * 64, 1)
            self._sites[run] = Site(ledger)
        site, no = self._sites[run], {"level": "full", "cut": {}, "order": b""}
        if (open_one := site.ledger.rounds.open()) is not None:
            site.ledger.rounds.move(open_one.round, open_one.attempt, "abandoned")
        entries = [
            Assignment(
                assignment_id=assignment_id("fed", where[1], name, where[2], run),
                round=where[1],
                attempt=where[2],
                device=name,
                artifact_digest="m" * 64,
                weights_digest="w" * 64,
                **no,
            )
            for name in sorted(names)
        ]
        site.ledger.rounds.plan(*where[1:], deadline_s=60.0, assignments=entries)
        site.ledger.rounds.move(*where[1:], "published")
        return site

    def vectors(self) -> tuple[list[Vector], list[bool]]:
        """What is left of uploads and sums, and which of it is a sum that was given out, without any mask."""
        found: list[Vector] = []
        is_sum: list[bool] = []
        for seen in self.seen:
            stripped = seen.stripped()
            honest = [stripped[name] for name in seen.uploads if name not in self.colluding]
            found += [seen.uploads[name] for name in seen.uploads if name not in self.colluding]
            found += honest
            found += [a + b for a, b in itertools.pairwise(honest)]
            for gone in seen.reported:  # sums of all but one
                parts = [stripped[name] for name in seen.reported if name != gone and name not in self.colluding]
                if gone not in self.colluding and parts:
                    found.append(np.sum(np.stack(parts), axis=0, dtype=np.uint32))
            is_sum += [False] * (len(found) - len(is_sum))
            for names, is_out in ((seen.reported, True), (tuple(seen.uploads), False)):
                parts = [stripped[name] for name in names if name not in self.colluding]
                if parts:
                    found.append(np.sum(np.stack(parts), axis=0, dtype=np.uint32))
                    is_sum.append((is_out or names == seen.reported) and len(seen.revealed) >= seen.threshold)
        return found, is_sum

    def largest(self) -> tuple[float, float]:
        """The largest correlation of a vector or a difference of two with a single update.

        Returns:
            That of all which is neither a sum that was given out nor the difference of two such, and that of those.
        """
        found, is_sum = self.vectors()
        targets = np.stack([_normed(u) for updates in self.single.values() for u in updates])
        given_out = [v for v, flag in zip(found, is_sum, strict=True) if flag]
        sums = {v.tobytes() for v in (*given_out, *(a - b for a, b in itertools.permutations(given_out, 2)))}
        sums |= {(-v).tobytes() for v in given_out}
        masked = of_sums = 0.0
        for vectors in _with_differences(np.stack(found)):
            signed = vectors.view(np.int32).astype(np.float32)
            signed -= signed.mean(axis=1, keepdims=True)
            norms = np.maximum(np.linalg.norm(signed, axis=1), 1e-9)
            for vector, largest in zip(vectors, np.abs(signed @ targets.T).max(axis=1) / norms, strict=True):
                if largest > masked and vector.tobytes() not in sums:
                    masked = float(largest)
                elif largest > of_sums and vector.tobytes() in sums:
                    of_sums = float(largest)
        return masked, of_sums

    def fewest(self) -> int:
        """Honest updates in the smallest sum that was given out."""
        sums = [s for s in self.seen if len(s.revealed) >= s.threshold]
        return min(len([name for name in s.reported if name not in self.colluding]) for s in sums)


def _with_differences(vectors: Vector) -> Iterator[Vector]:
    yield vectors
    for index in range(len(vectors) - 1):
        yield vectors[index + 1 :] - vectors[index]


def _normed(update: Vector) -> Vector:
    centred = update - update.mean()
    return (centred / np.linalg.norm(centred)).astype(np.float32)
