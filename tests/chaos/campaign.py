"""Many seeds, some at a time, each in a process of its own; what they found, counted."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import msgspec

from coordinator.brokers.mosquitto import find_mosquitto
from tests.chaos.disks import own_mounts, why_no_disks
from tests.chaos.forking import Forks, die_with
from tests.chaos.schedule import BrokerKind, Mode, Schedule, schedule, undisturbed
from tests.postgres_server import missing_postgres

# One thread each: runs share the machine, and sums are promised bit by bit for one thread.
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


FINDINGS = ("lost", "duplicated", "differing", "trouble", "unnamed", "late_named", "honest_barred")
"""Lists of an outcome that are empty after a good run."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one seed's process found."""

    seed: int
    resumes: int = 0
    wall_s: float = 0.0
    planned: list[str] = []
    injected: list[str] = []
    stops: list[str] = []
    lost: list[str] = []
    duplicated: list[str] = []
    differing: list[str] = []
    trouble: list[str] = []
    liars: int = 0
    named: int = 0
    unnamed: list[str] = []
    late_named: list[str] = []
    honest_barred: list[str] = []

    @property
    def is_good(self) -> bool:
        """Nothing was found."""
        return not any(getattr(self, what) for what in FINDINGS)


def import_everything() -> None:
    """What coordinators and devices import, once, in a process without threads of its own."""
    for name in ONE_THREAD:
        os.environ[name] = "1"
    import torch

    torch.set_num_threads(1)
    for name in (
        "onnxruntime", "coordinator.cli.assembly", "coordinator.cli.command", "coordinator.cli.results",
        "coordinator.cli.run", "coordinator.cli.resume",
        "coordinator.cli.join", "export.bundle", "export.inference_model", "sklearn.datasets",
        "edge.commands.agent", "alembic.command", "coordinator.planning.export_cache", "tests.chaos.seed_run",
        "tests.chaos.planted_bugs", "tests.chaos.liars.lies",
    ):  # fmt: skip
        importlib.import_module(name)


class Campaign:
    """The runs of ``seeds``.

    Args:
        keep: where folders of failing seeds go; a folder in the system's temporary one when empty.
    """

    def __init__(self, seeds: list[int], *, jobs: int = 2, keep: str = "") -> None:
        self._seeds, self._jobs = seeds, jobs
        self._keep = Path(keep) if keep else None
        self.work = Path(tempfile.mkdtemp(prefix="apportion-chaos-"))
        self._mosquitto = find_mosquitto() is not None
        self._has_postgres = not missing_postgres()
        self._has_buffered = importlib.util.find_spec("coordinator.rounds.buffered") is not None
        self.outcomes: list[Outcome] = []

    @property
    def broker(self) -> BrokerKind:
        """What most runs here have."""
        return "mosquitto" if self._mosquitto else "embedded"

    def plan(self, seed: int) -> Schedule:
        """The schedule of ``seed`` on this machine."""
        return schedule(
            seed, has_mosquitto=self._mosquitto, has_buffered=self._has_buffered, has_postgres=self._has_postgres
        )

    def run(self, *, show_only: bool = False) -> int:
        """Run them all; 0 when everything is as promised."""
        if show_only:
            for seed in self._seeds:
                print(self.plan(seed).text(), end="")
            return 0
        began = time.monotonic()
        try:
            self.prepare()
            self._run_all()
        finally:
            shutil.rmtree(self.work, ignore_errors=True)
        return self._report(time.monotonic() - began)

    def prepare(self) -> None:
        """Import, write the devices' data, and run undisturbed twice: all others are compared with those."""
        import_everything()
        why = why_no_disks()
        self._has_disks = not why
        print("disk full: " + ("tmpfs of each run's own" if not why else f"not injected here: {why}"))
        print(
            "broker: " + ("mosquitto, embedded in a tenth of the runs" if self._mosquitto else "embedded"), flush=True
        )
        where = "on PostgreSQL with two coordinators in a tenth" if self._has_postgres else missing_postgres()
        print(f"ledger: in a file, {where}", flush=True)
        in_child(lambda: _write_data(self.work))
        self._references: dict[Mode, bytes] = {}
        for again in (False, True):
            outcome = self.one(undisturbed("synchronous", self.broker), f"undisturbed-{again:d}")
            if not outcome.is_good:
                self._say(outcome)
                raise SystemExit("the undisturbed run failed; nothing can be compared with it")
            final = (self.work / f"undisturbed-{again:d}.safetensors").read_bytes()
            for module in msgspec.json.decode((self.work / "modules.json").read_bytes(), type=list[str]):
                importlib.import_module(module)
            if self._references.setdefault("synchronous", final) != final:
                raise SystemExit("two undisturbed runs differ; nothing can be compared with them")
        print(f"undisturbed: {outcome.wall_s:.1f} s", flush=True)

    def one(self, planned: Schedule, name: str, *, plant: str = "") -> Outcome:
        """What came of one run; ``name`` is its folder's."""
        path = self.work / f"{name}.json"
        in_child(lambda: self._run_one(planned, name, path, plant))
        return msgspec.json.decode(path.read_bytes(), type=Outcome)

    def _run_one(self, planned: Schedule, name: str, result: Path, plant: str = "") -> None:
        from tests.chaos.seed_run import run_seed

        if self._has_disks:
            own_mounts()
        reference = None if name.startswith("undisturbed") else self._references.get(planned.mode)
        outcome = run_seed(
            planned,
            self.work,
            name,
            has_disks=self._has_disks,
            reference=reference,
            keep=self._keep,
            plant=plant,
        )
        result.write_bytes(msgspec.json.encode(outcome))

    def _run_all(self) -> None:
        running: dict[int, tuple[int, Path]] = {}
        waiting = list(self._seeds)
        while waiting or running:
            while waiting and len(running) < self._jobs:
                seed = waiting.pop(0)
                path = self.work / f"seed-{seed}.json"
                pid = start_child(lambda s=seed, p=path: self._run_one(self.plan(s), f"seed-{s}", p))
                running[pid] = seed, path
            pid, _ = os.wait()
            seed, path = running.pop(pid)
            if path.exists():
                outcome = msgspec.json.decode(path.read_bytes(), type=Outcome)
            else:
                outcome = Outcome(seed=seed, trouble=["the harness ended without a result"])
            self.outcomes.append(outcome)
            self._say(outcome)

    def _say(self, outcome: Outcome) -> None:
        told = f"{len(outcome.injected)} of {len(outcome.planned)} faults, {outcome.resumes} resumes"
        print(f"seed {outcome.seed}: {told}, {outcome.wall_s:.1f} s{'' if outcome.is_good else ', FAILED'}", flush=True)
        for stop in outcome.stops:
            print(f"  stopped with {' '.join(stop.split())[-300:]}")
        if outcome.is_good:
            return
        for what in FINDINGS:
            for line in getattr(outcome, what):
                print(f"  {what}: {' '.join(line.split())[-400:]}")
        for line in outcome.planned:
            print(f"  {'injected' if line in outcome.injected else 'not injected'}: {line}")
        print(f'  again: make chaos SEEDS="{outcome.seed}"', flush=True)

    def _report(self, wall_s: float) -> int:
        planned, injected = Counter[str](), Counter[str]()
        for outcome in self.outcomes:
            planned.update(_kind(line) for line in outcome.planned)
            injected.update(_kind(line) for line in outcome.injected)
        width = max(map(len, planned), default=5)
        print(f"\n{'fault':{width}}  injected  planned")
        for kind in sorted(planned):
            note = "" if injected[kind] else "  never injected"
            print(f"{kind:{width}}  {injected[kind]:8}  {planned[kind]:7}{note}")
        total, done = planned.total(), injected.total()
        print(f"{'all':{width}}  {done:8}  {total:7}")
        failed = sorted(o.seed for o in self.outcomes if not o.is_good)
        stopped = sum(bool(o.stops) for o in self.outcomes)
        print(f"\n{wall_s:.0f} s; {stopped} runs stopped with a reason and were resumed; failed: {failed or 'none'}")
        troubled = [o.seed for o in self.outcomes if o.trouble]
        if troubled:
            print(f"without a proper end: {troubled}")
        if failed and self._keep:
            print(f"their folders are in {self._keep}")
        lost, duplicated, differing = (
            sum(len(getattr(o, w)) for o in self.outcomes) for w in ("lost", "duplicated", "differing")
        )
        resumed = sum(o.resumes > 0 for o in self.outcomes)
        # A run without an end has no model to compare: it differs from the undisturbed one.
        differing += sum(1 for o in self.outcomes if o.trouble and not (o.lost or o.duplicated or o.differing))
        counts = f"lost {lost}, duplicated {duplicated}, differing {differing}"
        liars, named = (sum(getattr(o, w) for o in self.outcomes) for w in ("liars", "named"))
        late, barred = (sum(len(getattr(o, w)) for o in self.outcomes) for w in ("late_named", "honest_barred"))
        said = f"liars {liars}, named {named}, late named {late}, honest barred {barred}"
        print(f"runs {len(self.outcomes)}, resumed {resumed}, {counts}, {said}", flush=True)
        return 1 if lost or duplicated or differing or named < liars or late or barred else 0


def _kind(line: str) -> str:
    action, target = line.split()[:2]
    return f"{action} {'device' if target.startswith('device-') else target}"


def start_child(work: object) -> int:
    """Process id of a fork that does ``work`` and ends."""
    sys.stdout.flush()
    parent, pid = os.getpid(), os.fork()
    if pid:
        return pid
    status = 1
    try:
        die_with(parent)
        work()  # type: ignore[operator]
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def in_child(work: object) -> None:
    """``work`` in a fork, awaited.

    Raises:
        RuntimeError: it failed; why was printed by it.
    """
    _, status = os.waitpid(start_child(work), 0)
    if status:
        raise RuntimeError("preparing failed")


def _write_data(work: Path) -> None:
    from tests.chaos.site import write_data

    write_data(work)


__all__ = ["Campaign", "Forks", "Outcome"]
