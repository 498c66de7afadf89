"""``apportion conformance``: hold an agent in any language against the wire protocol, or a method of one's own."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.command import parse_problem, verb
from edge.runtimes import BROWSER, DEFAULT

if TYPE_CHECKING:
    from coordinator.conformance.connection import AgentDriver
    from coordinator.conformance.findings import Finding
    from coordinator.conformance.registry import Scenario
    from coordinator.conformance.session import KitOptions

EXAMPLE = "Example: apportion conformance --only hello-says-who-and-what --only training-gives-the-reference --json"
_MARKS = {"ok": "ok", "failed": "FAILED", "not applicable": "-"}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("conformance", epilog=EXAMPLE)(conformance)


@verb("conformance")
def conformance(
    agent: Annotated[
        str,
        typer.Option(
            help="command that starts the agent, with {broker} {host} {port} {user} {password} {ca} {federation} "
            "{device} {data} {state} {trust_file} {budget_mb} {runtime}; the Python agent if unset; {ca} asks for TLS"
        ),
    ] = "",
    attach: Annotated[
        bool, typer.Option("--attach", help="print the connection as JSON; start the agent by hand")
    ] = False,
    page: Annotated[
        bool, typer.Option("--page", help="try the page for phones: print its link; open it, join and add the data")
    ] = False,
    restart: Annotated[str, typer.Option(help="with --attach: command that gets start, stop or kill added")] = "",
    runtime: Annotated[
        str, typer.Option(help=f"whose artifacts the agent trains; {DEFAULT}, with --page {BROWSER}, if unset")
    ] = "",
    broker: Annotated[str, typer.Option(help="mosquitto or embedded; Mosquitto if unset and installed")] = "",
    only: Annotated[
        list[str] | None, typer.Option(help="play this scenario, or make this check, alone; may be repeated")
    ] = None,
    method: Annotated[
        str, typer.Option(help="check a method instead of an agent: its name, or your own as package.module:Class")
    ] = "",
    config: Annotated[
        Path | None, typer.Option(help="with --method: run file whose model and options it is tried with")
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="list the scenarios and play none")] = False,
    patience: Annotated[float, typer.Option(min=0.01, help="multiplies every time that the agent is given")] = 1.0,
    log: Annotated[Path | None, typer.Option(help="file for what the agent says; thrown away if unset")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Play a coordinator opposite an agent and hold what it does against docs/wire-protocol.md.

    With --method, check a federated method instead: what it cuts, sums and refuses (docs/own-methods.md).

    Exit status 0: every scenario that applies holds.
    """
    from coordinator.conformance.session import KitOptions, named_scenarios, run_conformance

    if config is not None and not method:
        raise parse_problem("--config", "goes with --method")
    if method:
        return _of_method(method, config, only or [], show=show, quiet=as_json)
    if broker not in ("", "mosquitto", "embedded"):
        raise parse_problem("--broker", f"{broker!r} is neither mosquitto nor embedded")
    if sum((attach, page, bool(agent))) > 1:
        raise parse_problem("--attach", "give one of --agent, --attach and --page")
    if restart and not attach:
        raise parse_problem("--restart", "goes with --attach")
    scenarios = named_scenarios(only or [])
    if show:
        if not as_json:
            for scenario in scenarios:
                print(f"{scenario.name}\n    {scenario.summary} ({scenario.clause})")
        return {"scenarios": [{"name": s.name, "clause": s.clause, "summary": s.summary} for s in scenarios]}
    with tempfile.TemporaryDirectory(prefix="apportion-agent-") as folder:
        if page:
            options = KitOptions(runtime=runtime or BROWSER, broker=broker, patience=patience, plain_bulk=True)
            findings = _with_page(scenarios, options)
        else:
            driver, tls = _driver(agent, attach=attach, hook=restart, log=log or Path(folder) / "agent.log")
            options = KitOptions(runtime=runtime or DEFAULT, tls=tls, broker=broker, patience=patience)
            findings = run_conformance(driver, scenarios, options=options, tell=_tell)
    return _result(findings)


def _of_method(name: str, config: Path | None, only: list[str], *, show: bool, quiet: bool) -> dict[str, Any]:
    """What came of the checks of a method."""
    from coordinator.conformance.methods.session import check_names, run_checks, shown_name, subject_of, summary

    checks = check_names(only)
    if show:
        if not quiet:
            for check in checks:
                print(f"{shown_name(check)}\n    {summary(check)}")
        return {"checks": [{"name": shown_name(check), "summary": summary(check)} for check in checks]}
    return _result(run_checks(subject_of(name, config), checks, tell=_tell), what="checks of the method")


def _driver(agent: str, *, attach: bool, hook: str, log: Path) -> tuple[AgentDriver, bool]:
    from coordinator.conformance.drivers import OWN_AGENT, AttachedDriver, CommandDriver

    if attach:
        return AttachedDriver(hook=hook), False
    template = agent or OWN_AGENT
    return CommandDriver(template, log), "{ca}" in template


def _with_page(scenarios: Sequence[Scenario], options: KitOptions) -> list[Finding]:
    """What came of the page that somebody opens in a browser."""
    from coordinator.conformance.page_door import PageDriver
    from coordinator.conformance.session import run_conformance

    with contextlib.closing(PageDriver()) as driver:
        return run_conformance(driver, scenarios, options=options, tell=_tell)


def _tell(finding: Finding) -> None:
    """One row of the table, as soon as it is known; with ``--json`` it goes to stderr."""
    print(f"{_MARKS[finding.outcome]:<7}{finding.scenario:<54}{finding.wall_s:6.1f} s  {finding.clause}")
    print(f"       {finding.seen[:230]}")
    sys.stdout.flush()


def _result(findings: list[Finding], what: str = "scenarios") -> dict[str, Any]:
    counts = {outcome: sum(f.outcome == outcome for f in findings) for outcome in _MARKS}
    failed = [finding.scenario for finding in findings if finding.outcome == "failed"]
    print(f"\n{counts['ok']} hold, {counts['failed']} failed, {counts['not applicable']} not applicable")
    values: dict[str, Any] = {
        "ok": not failed and counts["ok"] > 0,
        "held": counts["ok"],
        "failed": counts["failed"],
        "not_applicable": counts["not applicable"],
        "findings": [
            {"scenario": f.scenario, "clause": f.clause, "outcome": f.outcome, "seen": f.seen, "wall_s": f.wall_s}
            for f in findings
        ],
    }
    if failed:
        message = f"{len(failed)} of {len(findings)} {what} failed: {', '.join(failed)}"
        values["error"] = {"code": "not-conformant", "message": message, "hint": "play one alone with --only and --log"}
    elif not counts["ok"]:
        message = "no scenario applies to this agent"
        values["error"] = {"code": "not-conformant", "message": message, "hint": "see the reasons above"}
    return values
