"""One running federation: its parts, and the stages that its rounds go through.

Putting the parts together from a configuration is :mod:`coordinator.cli`'s; what happens in which order is
:mod:`coordinator.rounds.round`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.blobs.blob_store import BlobStore
from coordinator.config.run_config import RunConfig
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment, RecordedUpdate, Round
from coordinator.messaging.cohort import Member
from coordinator.methods.method import Method
from coordinator.planning.artifacts import Artifacts
from coordinator.reporting.progress import Progress
from coordinator.rounds.evaluation import Score
from coordinator.rounds.round_clock import RoundClock
from coordinator.submodels.values import State, Tensors, Update
from edge.contracts.messages import Error, Hello
from edge.serving.traffic import Traffic


class Devices:
    """The devices of a run as its rounds see them: who they are, what they are given, and what they send.

    A driver for each kind: over a broker, through the ledger of several coordinators, in torch. A round calls them in
    the order of the methods. What a device answers is in the ledger before a round asks for it.

    Attributes:
        clock: the time that the open round has left.
    """

    clock: RoundClock

    def present(self, *, usable_only: bool = True) -> list[Hello]:
        """Those that are here, by id, at this moment; those that cannot take part only where all are asked for."""
        raise NotImplementedError

    def gather(self, federation: Federation, round_index: int) -> list[Hello]:
        """Those that are here once they are enough for round ``round_index``."""
        return self.present()

    def member(self, device: str) -> Member | None:
        """What is known of ``device``, whether it is here or not."""
        return None

    def assign(
        self,
        federation: Federation,
        state: State,
        chosen: Sequence[Hello],
        round_index: int,
        attempt: int,
        program: str,
    ) -> tuple[list[Assignment], int]:
        """The work of those of ``chosen`` that can take part, and how many could but for their budgets."""
        raise NotImplementedError

    def order(self, entries: Sequence[Assignment], deadline_s: Callable[[], float]) -> str:
        """Have ``entries`` carried out, each with the seconds that are left when its device hears of it.

        Returns:
            How much they are to fetch, for people; empty where nothing is sent.
        """
        raise NotImplementedError

    def announce(self, device: str) -> None:
        """Have the open order of ``device`` sent again."""

    def wait(self, timeout_s: float) -> None:
        """Return when a device may have answered, or after ``timeout_s``."""
        raise NotImplementedError

    def dismiss(self, entry: Assignment, why: str) -> None:
        """Tell the device of ``entry`` to forget it."""

    def tell(self, device: str, error: Error) -> None:
        """Tell a device what went wrong."""

    def update(self, federation: Federation, recorded: RecordedUpdate) -> Update:
        """What a device trained, whole."""
        raise NotImplementedError

    def at_rest(self) -> AbstractContextManager[object]:
        """A context in which no update is recorded."""
        return nullcontext()

    def gathers_statistics(self, federation: Federation, state: State) -> bool:
        """Whether those that took part in the last round, which left ``state``, have a program for statistics."""
        return False

    def scoring_round(self, federation: Federation) -> int | None:
        """The round in which devices score the final model, once those before it are committed; None after it."""
        return None

    def traffic(self) -> list[Traffic]:
        """Bytes of each device since this was asked last."""
        return []


class RoundStage:
    """One feature that takes part in rounds, at the places where a round asks it; a subclass overrides what it needs.

    A round calls every stage of its run in the order of :data:`coordinator.rounds.stages.STAGES`. A stage owns its part
    of the ledger and its section of the run file. It answers alike when it is asked again: a coordinator that was
    killed repeats the step it was in.
    """

    @classmethod
    def is_used(cls, config: RunConfig) -> bool:
        """Whether a run of ``config`` asks for it; every run, unless a subclass says otherwise."""
        return True

    def begun(self, federation: Federation) -> None:
        """The run begins, or goes on where another process left it."""

    def restored(self, federation: Federation, state: State) -> None:
        """Rounds go on from ``state``, that of the last committed round or the first."""

    def training_rounds(self, federation: Federation, planned: int) -> int:
        """How many rounds of training the run has; at most ``planned``."""
        return planned

    def ended(self, federation: Federation) -> None:
        """Every round is committed."""

    def eligible(self, federation: Federation, devices: list[str], round_index: int) -> list[str]:
        """Those of ``devices`` that may take part in the round."""
        return devices

    def selection_seed(self, federation: Federation, seed: int) -> int:
        """The seed that the round's devices are drawn by, in place of ``seed``."""
        return seed

    def check(self, federation: Federation, *, chosen: int, drawn_from: Sequence[str]) -> None:
        """Raises PlanError when a round with ``chosen`` devices of ``drawn_from`` must not be run."""

    def assignments(self, federation: Federation, assignments: list[Assignment]) -> list[Assignment]:
        """The planned assignments, before they are written."""
        return assignments

    def planned(self, federation: Federation, current: Round, *, chosen: int, drawn_from: Sequence[str]) -> None:
        """The attempt is in the ledger; nobody has heard of it."""

    def while_collecting(self, federation: Federation, current: Round) -> None:
        """Called again and again while devices work."""

    def participants(self, federation: Federation, current: Round, reported: list[str]) -> list[str]:
        """Those of the devices that reported whose updates count, by id; none when the round is to be repeated."""
        return reported

    def updates(
        self, federation: Federation, state: State, current: Round, program: str, updates: Iterator[Update]
    ) -> Iterator[Update]:
        """What is aggregated in place of ``updates``; asked before the first of them is read.

        Args:
            state: the one before the round, with what stages keep.
        """
        return updates

    def aggregated(self, federation: Federation, before: State, mean: State, kept: dict[str, Tensors]) -> State:
        """What is refreshed in place of ``mean``, the method's aggregate of a round that began with ``before``.

        Args:
            kept: stage -> tensors that it keeps from round to round; it puts its new ones there.
        """
        return mean

    def metrics(self, federation: Federation, current: Round, program: str, state: State) -> Mapping[str, Any]:
        """Figures of the round, which ends with ``state``."""
        return {}

    def before_commit(self, federation: Federation) -> None:
        """Called before the new state is written."""

    def committed(self, federation: Federation, state: State, entry: Mapping[str, Any]) -> None:
        """The round is committed, with ``state`` and what ``metrics.jsonl`` says of it."""


class Stages(RoundStage):
    """The stages of a run as one: each hook asks all of them, in order."""

    def __init__(self, stages: Sequence[RoundStage]) -> None:
        self._stages = tuple(stages)

    def begun(self, federation: Federation) -> None:
        for stage in self._stages:
            stage.begun(federation)

    def restored(self, federation: Federation, state: State) -> None:
        for stage in self._stages:
            stage.restored(federation, state)

    def training_rounds(self, federation: Federation, planned: int) -> int:
        for stage in self._stages:
            planned = stage.training_rounds(federation, planned)
        return planned

    def ended(self, federation: Federation) -> None:
        for stage in self._stages:
            stage.ended(federation)

    def eligible(self, federation: Federation, devices: list[str], round_index: int) -> list[str]:
        for stage in self._stages:
            devices = stage.eligible(federation, devices, round_index)
        return devices

    def selection_seed(self, federation: Federation, seed: int) -> int:
        for stage in self._stages:
            seed = stage.selection_seed(federation, seed)
        return seed

    def check(self, federation: Federation, *, chosen: int, drawn_from: Sequence[str]) -> None:
        for stage in self._stages:
            stage.check(federation, chosen=chosen, drawn_from=drawn_from)

    def assignments(self, federation: Federation, assignments: list[Assignment]) -> list[Assignment]:
        for stage in self._stages:
            assignments = stage.assignments(federation, assignments)
        return assignments

    def planned(self, federation: Federation, current: Round, *, chosen: int, drawn_from: Sequence[str]) -> None:
        for stage in self._stages:
            stage.planned(federation, current, chosen=chosen, drawn_from=drawn_from)

    def while_collecting(self, federation: Federation, current: Round) -> None:
        for stage in self._stages:
            stage.while_collecting(federation, current)

    def participants(self, federation: Federation, current: Round, reported: list[str]) -> list[str]:
        for stage in self._stages:
            reported = stage.participants(federation, current, reported)
        return reported

    def updates(
        self, federation: Federation, state: State, current: Round, program: str, updates: Iterator[Update]
    ) -> Iterator[Update]:
        for stage in self._stages:
            updates = stage.updates(federation, state, current, program, updates)
        return updates

    def aggregated(self, federation: Federation, before: State, mean: State, kept: dict[str, Tensors]) -> State:
        for stage in self._stages:
            mean = stage.aggregated(federation, before, mean, kept)
        return mean

    def metrics(self, federation: Federation, current: Round, program: str, state: State) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for stage in self._stages:
            found |= stage.metrics(federation, current, program, state)
        return found

    def before_commit(self, federation: Federation) -> None:
        for stage in self._stages:
            stage.before_commit(federation)

    def committed(self, federation: Federation, state: State, entry: Mapping[str, Any]) -> None:
        for stage in self._stages:
            stage.committed(federation, state, entry)


@dataclass(frozen=True)
class Federation:
    """Everything a round needs.

    Attributes:
        stages: the features that take part in its rounds.
        evaluate: scores of every model the method evaluates, by label.
        on_point: called with the name of each of :data:`coordinator.rounds.crash_points.POINTS` as it is passed; tests
            stop the process there.
        checkpoints: folder for the models that the run file asks to keep; None where they are not kept.
        tries: attempts that this process has begun, by round: what ended an earlier one may be mended.
    """

    name: str
    config: RunConfig
    method: Method
    artifacts: Artifacts
    ledger: Ledger
    blobs: BlobStore
    devices: Devices
    progress: Progress
    evaluate: Callable[[State], dict[str, Score]]
    stages: Stages
    on_point: Callable[[str], None] = field(default=lambda point: None)
    checkpoints: Path | None = None
    tries: Counter[int] = field(default_factory=Counter)

    @property
    def training_rounds(self) -> int:
        """How many rounds of training the run has, as far as its committed rounds say."""
        return self.stages.training_rounds(self, self.config.federation.rounds)

    def cut_round(self, round_index: int, program: str) -> int:
        """The round whose cuts devices have in a round: of one that trains nothing, the last that did.

        What they gather or score then is the model that they trained, not what a round after it would have begun.
        """
        return round_index if program == "train" else min(round_index, self.training_rounds - 1)
