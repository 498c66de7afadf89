"""One seed from beginning to end, in a process that does nothing else: run, audit, and keep what failed."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.chaos.audit import audit, recorded
from tests.chaos.campaign import Outcome
from tests.chaos.director import Director
from tests.chaos.forking import Forks
from tests.chaos.schedule import Schedule
from tests.chaos.site import Site


def run_seed(
    planned: Schedule,
    work: Path,
    name: str,
    *,
    has_disks: bool,
    reference: bytes | None,
    keep: Path | None,
    plant: str = "",
) -> Outcome:
    """What came of ``planned``; its folder goes to ``keep`` when something is wrong, and away otherwise."""
    forks = Forks()
    site = Site(work, work / name, has_disks=has_disks)
    (site.folder / "schedule.txt").write_text(planned.text(), encoding="utf-8")
    director = Director(planned, site, forks, recorded=lambda: recorded(site), plant=plant)
    story = director.run()
    forks.close()
    verdict = audit(site, story, planned, reference)
    director.close()
    final = story.finished_in / "checkpoints" / "final.safetensors"
    if reference is None and final.exists():
        shutil.copyfile(final, work / f"{name}.safetensors")
    if not verdict.is_good and keep is not None:
        shutil.rmtree(keep / name, ignore_errors=True)
        shutil.copytree(site.folder, keep / name)
    return Outcome(
        seed=planned.seed,
        resumes=story.resumes,
        wall_s=story.wall_s,
        planned=[str(fault) for fault in planned.faults],
        injected=[str(fault) for fault in story.injected],
        stops=story.stops,
        lost=verdict.lost,
        duplicated=verdict.duplicated,
        differing=verdict.differing,
        trouble=verdict.trouble,
        liars=verdict.naming.liars,
        named=verdict.naming.named,
        unnamed=verdict.naming.unnamed,
        late_named=verdict.naming.late,
        honest_barred=verdict.naming.honest_barred,
    )
