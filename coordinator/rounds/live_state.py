"""Writes the fleet as it is to ``live.json``, for those who look: at most once a second, in a thread of its own.

No part of a round: nothing waits for it, and a disk that takes no file costs the run nothing but the file.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from coordinator.history.live import FILE, LiveDevice, LiveState
from coordinator.messaging.cohort import Cohort, Member
from coordinator.rounds.round_clock import RoundClock

EVERY_S = 1.0

SHARE = 0.01
"""The most that it takes of a processor: of many thousands of devices it is written less often."""


def live_device(member: Member, now: float, at: float) -> LiveDevice:
    """A member of the cohort at ``now`` (monotonic), which is ``at`` since 1970."""
    hello, beat, profile = member.hello, member.heartbeat, member.hello.profile
    return LiveDevice(
        device=hello.device,
        is_here=member.is_present(now),
        heard_at=round(at - (now - member.heard_at), 1),
        state=hello.state if beat is None else beat.state,
        assignment_id=hello.assignment_id if beat is None else beat.assignment_id,
        step=0 if beat is None else beat.step,
        total_steps=0 if beat is None else beat.total_steps,
        loss=None if beat is None else beat.loss,
        waiting_for="" if beat is None else beat.waiting_for,
        reason="" if beat is None else beat.reason,
        away_reason=member.away_reason,
        unusable=hello.data_error or member.runtime_error,
        budget_bytes=profile.budget_bytes,
        num_examples=hello.num_examples,
        agent_version=hello.agent_version,
        board=profile.board or profile.cpu_model or profile.machine,
        tags=hello.tagged,
        temperature_c=profile.temperature_c,
        battery_percent=profile.battery_percent,
        charging=profile.charging,
        throttling=profile.throttling or (),
    )


def live_state(cohort: Cohort, clock: RoundClock) -> LiveState:
    """The fleet at this moment."""
    now, at = time.monotonic(), time.time()
    return LiveState(
        written_at=at,
        deadline_left_s=round(max(0.0, clock.remaining_s()), 1),
        devices=tuple(live_device(member, now, at) for member in cohort.members()),
    )


@contextlib.contextmanager
def written_live(run_dir: Path, cohort: Cohort, clock: RoundClock) -> Iterator[None]:
    """Keeps ``live.json`` of ``run_dir`` up to date while the context is open; afterwards it is gone."""
    ended = threading.Event()
    path, new = run_dir / FILE, run_dir / f".{FILE}.new"

    def write() -> None:
        while not ended.is_set():
            began = time.thread_time()
            with contextlib.suppress(OSError):  # the disk is full: the next second is another try
                new.write_bytes(msgspec.json.encode(live_state(cohort, clock)))
                os.replace(new, path)  # whole or not at all; nothing here has to survive a power cut
            ended.wait(max(EVERY_S, (time.thread_time() - began) / SHARE))

    thread = threading.Thread(target=write, name="live", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(5.0)
        for file in (path, new):
            file.unlink(missing_ok=True)
