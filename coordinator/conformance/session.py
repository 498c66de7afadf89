"""A session of the kit: surroundings, one agent, one scenario after the other."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.conformance.connection import AgentDriver
from coordinator.conformance.findings import Failed, Finding, NotApplicable, Outcome
from coordinator.conformance.registry import Scenario
from edge.contracts.errors import ApportionError, ConfigError
from edge.runtimes import DEFAULT

if TYPE_CHECKING:
    from coordinator.conformance.kit import Kit


@dataclass(frozen=True, kw_only=True)
class KitOptions:
    """How a session is held.

    Attributes:
        runtime: that the agent trains with, as in docs/runtimes.
        tls: whether broker and blobs are behind TLS, with an authority made for the session.
        broker: ``mosquitto`` or ``embedded``; empty: Mosquitto where it is installed.
        patience: multiplies every time that the agent is given.
        budget_mb: memory that the agent is told to keep.
        plain_bulk: blobs over HTTP in clear instead of HTTPS, as a page of this machine itself has them.
        artifacts: folder that keeps the kit's artifacts from one session to the next; None: exported anew.
    """

    runtime: str = DEFAULT
    tls: bool = False
    broker: str = ""
    patience: float = 1.0
    budget_mb: int = 2000
    plain_bulk: bool = False
    artifacts: Path | None = None


def all_scenarios() -> tuple[Scenario, ...]:
    """Every scenario, in the order of playing."""
    from coordinator.conformance.scenarios import SCENARIOS

    return tuple(SCENARIOS.values())


def named_scenarios(names: Sequence[str]) -> tuple[Scenario, ...]:
    """The scenarios with one of ``names``, all of them where there is none.

    Raises:
        ConfigError: an unknown name.
    """
    known = all_scenarios()
    unknown = sorted(set(names) - {scenario.name for scenario in known})
    if unknown:
        raise ConfigError([f"--only: no scenario {name!r}" for name in unknown], hint="apportion conformance --list")
    return tuple(s for s in known if not names or s.name in names)


def run_conformance(
    driver: AgentDriver,
    scenarios: Sequence[Scenario] = (),
    *,
    options: KitOptions | None = None,
    tell: Callable[[Finding], None] = lambda finding: None,
) -> list[Finding]:
    """What came of ``scenarios``, all of them where none is given; the agent of ``driver`` is stopped at the end.

    Args:
        tell: called with each finding as soon as there is one.

    Raises:
        BrokerUnreachable: the broker cannot be started here.
        ExportRefused: no artifacts for the runtime; also ConfigError.
    """
    from coordinator.conformance.artifacts import Artifacts
    from coordinator.conformance.kit import Kit
    from coordinator.conformance.site import open_site

    chosen = options or KitOptions()
    findings = []
    with open_site(runtime=chosen.runtime, tls=chosen.tls, broker=chosen.broker, budget_mb=chosen.budget_mb) as site:
        artifacts = Artifacts(chosen.artifacts or site.folder / "artifacts", chosen.runtime)
        kit = Kit(site, driver, artifacts, patience=chosen.patience, plain_bulk=chosen.plain_bulk)
        try:
            for scenario in scenarios or all_scenarios():
                finding = _play(kit, scenario)
                findings.append(finding)
                tell(finding)
        finally:
            with contextlib.suppress(NotApplicable):
                kit.kill()
    return findings


def _play(kit: Kit, scenario: Scenario) -> Finding:
    began = time.monotonic()
    outcome: Outcome = "ok"
    try:
        seen = scenario.play(kit)
    except NotApplicable as reason:
        outcome, seen = "not applicable", str(reason)
    except (Failed, ApportionError, subprocess.SubprocessError, OSError) as error:
        outcome, seen = "failed", str(error)
    kit.settle()
    if outcome == "failed":
        # Whatever state it is in: the next scenario begins with an agent that was just started, if it can be.
        with contextlib.suppress(NotApplicable, subprocess.SubprocessError, OSError):
            kit.kill()
    return Finding(scenario.name, scenario.clause, outcome, " ".join(seen.split()), time.monotonic() - began)
