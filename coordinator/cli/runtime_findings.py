"""What ``apportion doctor CONFIG`` says about the runtimes of a run file: whether trainers with them start here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.cli.finding import Finding
from coordinator.planning.planner import MB
from edge.contracts.errors import ApportionError
from edge.measuring.idle_size import measure_idle_sizes
from edge.runtimes import RUNTIMES, traits_of
from edge.runtimes.environments import runtime_python

if TYPE_CHECKING:
    from coordinator.config.run_config import RunConfig

EXIT_CONFIG = 2
"""What a run ends with whose local devices cannot start their trainers."""


def runtime_findings(config: RunConfig) -> list[Finding]:
    """One finding per runtime of the run file; a failure where devices started on this machine would lack it."""
    needed = {config.runtime.of_group(group) for group in config.cohort.local}
    return [_finding(config, name, is_needed=name in needed) for name in config.runtime.names]


def _finding(config: RunConfig, name: str, *, is_needed: bool) -> Finding:
    what = f"runtime {name}"
    if name not in RUNTIMES:
        return Finding(what, "ok", "nothing to start here: browsers bring it with the page")
    install = traits_of(name).install
    try:
        python = runtime_python(name, config.runtime.environments.get(name, ""))
        _, idle_bytes = measure_idle_sizes(name, python=str(python))
    except ApportionError as error:
        remedy = f"{install}, or name the folder that has it in [runtime] environments"
        if is_needed:
            return Finding(what, "fail", str(error), remedy, EXIT_CONFIG)
        return Finding(what, "warn", f"not on this machine, devices bring their own ({error})", remedy)
    return Finding(what, "ok", f"a trainer starts with {python}, {idle_bytes / MB:.0f} MB idle")
