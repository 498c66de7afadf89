"""What ``apportion doctor`` says about the page for phones: whether it is built, can be served, and with which name."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from coordinator.cli.finding import Finding
from edge.contracts.errors import ApportionError

if TYPE_CHECKING:
    from coordinator.config.run_config import RunConfig

WHAT = "page for phones"


def page_finding() -> Finding:
    """Whether a run with ``[broker] web`` could serve the page; without one, nobody needs it."""
    from coordinator.web.pages import Pages

    try:
        pages = Pages()
    except ApportionError as error:
        problems = getattr(error, "problems", (str(error),))
        return Finding(WHAT, "warn", problems[0], error.hint)
    return Finding(WHAT, "ok", f"built, {len(pages.paths())} files")


def page_findings(config: RunConfig) -> list[Finding]:
    """The same for a run file that has a page, where its lack is a failure; and the certificate of its host."""
    if not config.broker.web:
        return []
    from coordinator.cli.page_serving import given_certificate, page_files
    from coordinator.web.pages import Pages

    findings = []
    try:
        Pages()
        findings.append(Finding(WHAT, "ok", f"to be served at {config.broker.web}"))
    except ApportionError as error:
        findings.append(Finding.failure(WHAT, error))
    parts = urlsplit(config.broker.web)
    if parts.scheme == "https":
        host = parts.hostname or ""
        try:
            certificate, _ = page_files(config.broker)
            given = given_certificate(config.broker)
            if given is not None and (warning := given.warning()):
                findings.append(Finding("certificate", "warn", warning))
            else:
                findings.append(Finding("certificate", "ok", f"for {host}: {certificate}"))
        except ApportionError as error:
            findings.append(Finding.failure("certificate", error))
    return findings
