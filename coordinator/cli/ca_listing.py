"""``apportion ca ls`` and ``apportion ca crl``: what was issued, what is about to run out, and the revocation list."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.ca_root import IDENTITY
from coordinator.cli.command import verb

if TYPE_CHECKING:
    from coordinator.identity.expiry import Ending
    from coordinator.identity.records import BrowserDevice, IssuedCertificate

LS_EXAMPLE = "Example: apportion ca ls --within 30 --check"
CRL_EXAMPLE = "Example: apportion ca crl --broker-folder broker"

Folder = Annotated[Path, typer.Option("--dir", metavar="DIR", help="folder of the identity")]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")]


@verb("ca")
def crl(
    folder: Folder = IDENTITY,
    days: Annotated[int, typer.Option(min=1, max=3650, help="how long brokers may go by this list")] = 30,
    broker_folder: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="as ca mosquitto or ca rabbitmq --out wrote it: bring it up to date; repeat"),
    ] = None,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Write the revocation list anew, also into brokers' folders. With a list that has run out nobody gets in."""
    from coordinator.fleet.revocation import tell_broker
    from coordinator.identity.authority import Authority
    from coordinator.identity.expiry import DAY_S, LIST_DAYS

    with Authority(folder) as authority:
        until = authority.write_crl(days=days).timestamp()
        path = str(authority.folder.crl)
    next_update, due = _date(until), _date(until - min(LIST_DAYS, days / 4) * DAY_S)
    news = [(broker, tell_broker(folder, broker)) for broker in broker_folder or []]
    if not as_json:
        print(f"{path}: good until {next_update}; the next one is due by {due}")
        if not news:
            print("Give it to the broker and reload that (--broker-folder DIR does it, or says how)")
        for broker, told in news:
            print(f"{broker}: written anew" + (f", process {told.pid} told" if told.pid is not None else ""))
            for command in told.commands:
                print(f"  {command}")
    return {
        "crl": path,
        "next_update": next_update,
        "due": due,
        "brokers": [{"folder": str(broker), "pid": told.pid, "commands": list(told.commands)} for broker, told in news],
    }


@verb("ca")
def ls(
    folder: Folder = IDENTITY,
    within: Annotated[int, typer.Option(min=0, max=3650, metavar="DAYS", help="tell what ends within so many")] = 21,
    check: Annotated[bool, typer.Option("--check", help="exit 1 when something has ended or will within DAYS")] = False,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Every certificate that was issued, every device in a browser, the revocation list's end, and what ends soon."""
    from coordinator.identity.authority import Authority
    from coordinator.identity.expiry import endings

    with Authority(folder) as authority:
        now = authority.now()
        rows = [_row(certificate, now) for certificate in authority.records.certificates()]
        browsers = [_browser_row(browser) for browser in authority.records.browsers()]
        crl_until = _date(authority.records.revocation_list()[2])
        root_until = _date(authority.root_not_after)
        issuer_until = _date(authority.issuer_not_after)
        ending = endings(authority, within)
    if not as_json:
        for row in rows:
            print(f"{row['kind']:12} {row['name']:24} {row['status']:8} until {row['not_after']}  {row['serial']}")
        for row in browsers:
            print(f"{'browser':12} {row['name']:24} {row['status']:8} since {row['since']}  {row['serial']}")
        print(f"root until {root_until}, issuer until {issuer_until}, revocation list until {crl_until}")
        for one in ending:
            print(f"{one}\n  next: {one.remedy}")
    values: dict[str, Any] = {
        "certificates": rows,
        "browsers": browsers,
        "crl_next_update": crl_until,
        "root_not_after": root_until,
        "issuer_not_after": issuer_until,
        "ending": [_ending_row(one) for one in ending],
    }
    if check and ending:
        message = "; ".join(str(one) for one in ending)
        values |= {"ok": False, "error": {"code": "ending", "message": message, "hint": ending[0].remedy}}
    return values


def _ending_row(ending: Ending) -> dict[str, Any]:
    return {
        "kind": ending.kind,
        "name": ending.name,
        "not_after": _date(ending.not_after),
        "has_ended": ending.has_ended,
        "remedy": ending.remedy,
    }


def _browser_row(browser: BrowserDevice) -> dict[str, Any]:
    return {
        "name": browser.device,
        "status": "valid" if browser.revoked_at is None else "revoked",
        "since": _date(browser.since),
        "serial": browser.serial,
        "reason": browser.reason,
    }


def _row(certificate: IssuedCertificate, now: float) -> dict[str, Any]:
    return {
        "name": certificate.name,
        "kind": certificate.kind,
        "status": certificate.status(now),
        "not_after": _date(certificate.not_after),
        "serial": certificate.serial,
        "hosts": list(certificate.hosts),
        "reason": certificate.reason,
    }


def _date(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
