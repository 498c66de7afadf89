"""Who this device is and how it is doing: the hello after every connect and the heartbeats in between."""

from __future__ import annotations

from pathlib import Path

import msgspec

from edge.contracts import evaluation, fixed_sample, installation
from edge.contracts.messages import AgentState, Heartbeat, Hello
from edge.contracts.release import RELEASE
from edge.masking.keys import ABILITY, is_able
from edge.releases import own_tensors
from edge.supervisor import control_variates
from edge.supervisor.assignment import Assignment
from edge.supervisor.native_trainer import Told
from edge.supervisor.settings import AgentSettings
from edge.supervisor.trainer_messages import Described, Ready
from edge.system.meter import rss_bytes
from edge.transfer.link_rate import LinkRate
from profiles.device import DeviceProfile
from profiles.measured_lines import WatchedLines
from profiles.probe import probe

USUAL = "usual of this runtime; no Python trainer has run here yet"
"""Source of an idle size that this device has not measured."""


class Presence:
    """What the device knows of itself. Runtime and data are known once a trainer has told, of whichever kind.

    Attributes:
        data_error, data_error_code: why the local data cannot be used, or empty.
        trainer_idle_bytes: resident memory of a Python trainer with runtime and local data, before any artifact; until
            one has run, what it usually is.
        native_idle_bytes: the same of a trainer without Python; 0 where there is none for runtime and data.
    """

    def __init__(self, settings: AgentSettings, storage: Path, root: Path) -> None:
        self._settings = settings
        self._root = root
        self._storage = storage
        self._measured = WatchedLines(storage)
        self._runtimes: dict[str, str] = {}
        self._max_threads: dict[str, int] = {}
        self._sparse_below: dict[str, dict[str, float]] = {}
        self._num_examples = 0
        self._unread_bytes = 0
        self._is_usual = False
        self.is_known = False
        self.data_error = ""
        self.data_error_code = ""
        self.trainer_idle_bytes = 0
        self.native_idle_bytes = 0
        self.supervisor_idle_bytes = 0

    def told(self, told: Told) -> None:
        """The trainer without Python has told of runtime and data, before any Python trainer."""
        self._loaded(told.ready)
        self.is_known, self._is_usual = True, True
        self._num_examples, self._unread_bytes = told.num_examples, told.data_bytes
        self.trainer_idle_bytes, self.native_idle_bytes = told.python_idle_bytes, told.ready.rss_bytes

    def ready(self, reply: Ready) -> bool:
        """A Python trainer has loaded its runtime; whether what it weighs is news to who knew only what is usual."""
        self._loaded(reply)
        is_news, self._is_usual = self._is_usual, False
        if is_news:
            self.trainer_idle_bytes = reply.rss_bytes + self._unread_bytes
        return is_news

    def _loaded(self, reply: Ready) -> None:
        self._runtimes = {reply.runtime: reply.version}
        limits = [most for most in (reply.max_threads, self._settings.threads) if most]
        self._max_threads = {reply.runtime: min(limits)} if limits else {}
        # The first measurement counts: a trainer that starts anew in mid-training would measure a busy machine.
        if reply.sparse_below and reply.runtime not in self._sparse_below:
            self._sparse_below[reply.runtime] = reply.sparse_below

    def described(self, reply: Described) -> bool:
        """A trainer has read the local data; whether that is news."""
        is_news = not self.is_known or (reply.num_examples, reply.error) != (self._num_examples, self.data_error)
        self.is_known = True
        self._num_examples, self.trainer_idle_bytes = reply.num_examples, reply.rss_bytes
        self.data_error_code, self.data_error = reply.code, reply.error
        return is_news

    def profile(self) -> DeviceProfile:
        """The device now."""
        self.supervisor_idle_bytes = self.supervisor_idle_bytes or rss_bytes()
        found = probe(
            self._settings.device,
            budget_bytes=self._settings.budget_bytes,
            storage=self._storage,
            supervisor_idle_bytes=self.supervisor_idle_bytes,
            trainer_idle_bytes=dict.fromkeys(self._runtimes, self.trainer_idle_bytes),
            max_threads=self._max_threads,
            sparse_below=self._sparse_below,
            runtimes=self._runtimes,
            root=self._root,
        )
        if self.native_idle_bytes:
            native = dict.fromkeys(self._runtimes, self.native_idle_bytes)
            found = msgspec.structs.replace(found, native_idle_bytes=native)
        if self._is_usual:
            sources = {**found.sources, "trainer_idle_bytes": USUAL}
            found = msgspec.structs.replace(found, sources=sources)
        return LinkRate(self._storage).put_into(self._measured.now().put_into(found))

    @property
    def num_examples(self) -> int:
        """As the trainer counted them."""
        return self._num_examples

    def held_bytes(self, *, is_training: bool, is_native: bool = False) -> int:
        """Resident memory of the idle supervisor, and of an idle trainer when there is one, without Python or with."""
        trainer = self.native_idle_bytes if is_native else self.trainer_idle_bytes
        return self.supervisor_idle_bytes + (trainer if is_training else 0)

    def hello(self, state: AgentState, work: Assignment | None) -> Hello:
        """Sent after every connect."""
        return Hello(
            device=self._settings.device,
            agent_version=RELEASE,
            profile=self.profile(),
            runtimes=self._runtimes,
            num_examples=self._num_examples,
            data_error=self.data_error,
            state=state,
            assignment_id="" if work is None else work.order.assignment_id,
            abilities=(
                *([ABILITY] if is_able() else []),
                own_tensors.ABILITY,
                evaluation.ABILITY,
                installation.ABILITY,
                control_variates.ABILITY,
                fixed_sample.ABILITY,
            ),
            tags=self._settings.tags or msgspec.UNSET,
        )


def heartbeat(state: AgentState, work: Assignment | None, problem: str = "") -> Heartbeat:
    """Still here, how far, and ``problem``, what its disk does not take."""
    if work is None:
        return Heartbeat(state=state)
    progress = work.progress
    return Heartbeat(
        state=state,
        assignment_id=work.order.assignment_id,
        step=0 if progress is None else progress.step,
        total_steps=0 if progress is None else progress.total_steps,
        loss=None if progress is None else progress.loss,
        reason=work.waiting if state == "waiting" else problem,
        waiting_for=(work.waiting_for or "") if state == "waiting" else "",
    )
