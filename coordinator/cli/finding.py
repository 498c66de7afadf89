"""One thing that ``apportion doctor`` has looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from edge.contracts.errors import ApportionError


@dataclass(frozen=True)
class Finding:
    """One thing looked at: ``ok``, ``warn`` (works, but) or ``fail``, what was seen, and how to mend it.

    Attributes:
        exit_code: of a failure: the exit status that a run would end with.
    """

    name: str
    state: Literal["ok", "warn", "fail"]
    detail: str
    fix: str = ""
    exit_code: int = 1

    @classmethod
    def failure(cls, name: str, error: ApportionError) -> Finding:
        """What a run would end with."""
        return cls(name, "fail", str(error), error.hint, error.exit_code)

    def as_dict(self) -> dict[str, str]:
        """For ``--json``; a fix only where there is something to mend."""
        return {
            "name": self.name,
            "state": self.state,
            "detail": self.detail,
            "fix": self.fix if self.needs_fix else "",
        }

    @property
    def needs_fix(self) -> bool:
        """Whether there is something to mend."""
        return bool(self.fix) and self.state != "ok"
