"""What follows when a trainer dies in the middle of an order: it begins once more, or the order is refused for good.

An order whose trainer died for its memory is not begun again: it would die the same way. The refusal says what was used
and what there is, and the coordinator plans a smaller cut. An agent that dies itself leaves a note of what it was
training, and treats its own deaths alike.
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable
from pathlib import Path

import msgspec

from edge.contracts.messages import Refuse
from edge.supervisor.assignment import Assignment
from edge.supervisor.settings import AgentSettings
from edge.supervisor.trainer_link import TrainerEnded
from edge.system.meter import peak_rss_bytes
from edge.system.out_of_memory import CODE, MemoryKills, died_of_memory
from profiles.device import DeviceProfile

log = logging.getLogger("apportion.agent")

OWN_DEATHS = 3
"""Times that an agent may end in the middle of one order, for whatever reason, before it refuses it."""


class _Note(msgspec.Struct):
    """What was being trained: the order's identity, own deaths over it, and the kernel's kills before."""

    identity: str
    deaths: int
    kills: int


class Crashes:
    """Knows which orders a trainer, or the agent, did not survive.

    Args:
        note: file that says what is being trained.
        profile: the device now.
    """

    def __init__(self, settings: AgentSettings, note: Path, root: Path, profile: Callable[[], DeviceProfile]) -> None:
        self._settings, self._note, self._profile = settings, note, profile
        self._kills = MemoryKills(root)
        self._for_good: dict[str, Refuse] = {}
        self._before = self._read()

    def known(self, work: Assignment) -> Refuse | None:
        """The refusal of an order that was given up for good, else None."""
        before = self._before
        if work.identity not in self._for_good and before is not None and before.identity == work.identity:
            if before.kills < self._kills.seen:  # a group that was made anew counts from 0, and says nothing
                self._for_good[work.identity] = self._memory_refusal(work, 0, "the agent itself was killed over it")
            elif before.deaths >= OWN_DEATHS:
                reason = f"the agent ended {before.deaths} times in the middle of it"
                self._for_good[work.identity] = work.crash_refusal(reason, self._settings)
        return self._for_good.get(work.identity)

    def begins(self, work: Assignment) -> None:
        """Remember that ``work`` is being trained, should this process not live to say how it ended."""
        self._kills.happened()  # what was killed until now was not killed over it
        before = self._before
        deaths = before.deaths if before is not None and before.identity == work.identity else 0
        self._write(_Note(work.identity, deaths + 1, self._kills.seen))

    def over(self) -> None:
        """Nothing is being trained any more, and this process lives."""
        self._before = None
        self._note.unlink(missing_ok=True)

    def after(self, work: Assignment, ended: TrainerEnded) -> Refuse | None:
        """The refusal of an order whose trainer died; None when it is to be begun again, which happens once."""
        work.crashes += 1
        used = ended.peak_bytes + peak_rss_bytes()
        limits = self._profile()
        if died_of_memory(
            ended.signal,
            is_counted=self._kills.happened(),
            used_bytes=used,
            limit_bytes=limits.memory_limit_bytes or limits.ram_bytes,
            data_limit_bytes=_data_limit_bytes(),
        ):
            return self._given_up(work, self._memory_refusal(work, used, f"its trainer ended with {ended.reason}"))
        if work.crashes == 1:
            # A killed trainer costs time, not the result: the order determines it, so it is begun again, once.
            log.warning("the trainer crashed (%s), starting the order again", ended.reason)
            return None
        return self._given_up(work, work.crash_refusal(ended.reason, self._settings))

    def failed(self, work: Assignment, code: str, reason: str, trainer_peak_bytes: int) -> Refuse:
        """The refusal of an order that a living trainer could not carry out; for good where memory is the reason."""
        if code != CODE:
            return work.refusal(code, reason)
        return self._given_up(work, self._memory_refusal(work, trainer_peak_bytes + peak_rss_bytes(), reason))

    def _given_up(self, work: Assignment, refusal: Refuse) -> Refuse:
        self._for_good[work.identity] = refusal
        return refusal

    def _memory_refusal(self, work: Assignment, used_bytes: int, reason: str) -> Refuse:
        limits = self._profile()
        limit = min(filter(None, (limits.memory_limit_bytes, _data_limit_bytes())), default=limits.ceiling_bytes)
        used = f"{used_bytes} bytes" if used_bytes else "an unknown size"
        text = (
            f"device {self._settings.device}, round {work.order.round}: out of memory at {used} of "
            f"{limit or 'unknown'} ({reason}); it is not begun again, plan a smaller cut"
        )
        return msgspec.structs.replace(work.refusal(CODE, text, budget_bytes=limit), peak_bytes=used_bytes)

    def _read(self) -> _Note | None:
        try:
            return msgspec.json.decode(self._note.read_bytes(), type=_Note)
        except (OSError, msgspec.MsgspecError):
            return None

    def _write(self, note: _Note) -> None:
        try:
            self._note.write_bytes(msgspec.json.encode(note))
        except OSError as error:
            log.warning("%s cannot be written: %s", self._note, error)


def _data_limit_bytes() -> int:
    """What this process, and so its trainer, may allocate; 0 without a limit."""
    limits = [resource.getrlimit(which)[0] for which in (resource.RLIMIT_DATA, resource.RLIMIT_AS)]
    return min((limit for limit in limits if limit > 0), default=0)
