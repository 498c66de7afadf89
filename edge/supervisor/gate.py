"""Lets an assignment train while the owner's conditions are met, and says what it waits for when they are not."""

from __future__ import annotations

import logging

from edge.supervisor.assignment import Assignment
from edge.supervisor.conditions import Conditions, Surroundings, unmet
from edge.supervisor.presence import Presence
from edge.supervisor.trainer_link import TrainerLink

log = logging.getLogger("apportion.conditions")

CHECK_S = 5.0


class Gate:
    """Asked before a training and every :data:`CHECK_S` while one waits or runs."""

    def __init__(
        self, conditions: Conditions, presence: Presence, trainer: TrainerLink, surroundings: Surroundings
    ) -> None:
        self._conditions = conditions
        self._presence = presence
        self._trainer = trainer
        self._surroundings = surroundings
        self._asked_at = float("-inf")
        self._is_news = False

    def is_due(self, now: float) -> bool:
        """Whether it is time to ask again; asking is then counted from ``now``."""
        if now - self._asked_at < CHECK_S:
            return False
        self._asked_at = now
        return True

    def lets(self, work: Assignment, *, is_training: bool = False) -> bool:
        """Whether ``work`` may train now; ``work`` then knows what it waits for, or that it waits for nothing.

        Args:
            is_training: it does already, in memory and storage that it has.
        """
        found = unmet(
            self._conditions,
            self._presence.profile(),
            minute=self._surroundings.minute_of_day(),
            needed_bytes=work.needed_bytes,
            held_bytes=self._presence.held_bytes(
                is_training=self._trainer.is_running, is_native=self._trainer.is_native
            ),
            is_training=is_training or self._trainer.is_paused,
            before=work.waiting_for,
        )
        condition, reason = (None, "") if found is None else (found.condition, found.reason)
        is_news, work.waiting_for, work.waiting = condition != work.waiting_for, condition, reason
        if is_news:
            self._is_news = True
            identity = work.order.assignment_id[:12]
            log.info("assignment %s %s", identity, f"waits for {condition}: {reason}" if condition else "goes on")
        return found is None

    def take_news(self) -> bool:
        """Whether an answer since the last call was another than the one before: the agent then reports at once."""
        is_news, self._is_news = self._is_news, False
        return is_news
