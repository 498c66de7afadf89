"""``apportion audit show|export|verify``: who did what in a run, or with an identity, and whether the log is whole."""

from __future__ import annotations

import csv
import datetime
import re
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.command import parse_problem, verb
from coordinator.cli.run_directory import ledger_of

if TYPE_CHECKING:
    from coordinator.audit_log.chain import Checked
    from coordinator.audit_log.entry import Entry
    from coordinator.audit_log.head import Head

EXAMPLE = "Example: apportion audit show runs/first --device pi-07"

audit = typer.Typer(help="Who did what, when, and how that is known.", no_args_is_help=True)

Source = Annotated[Path, typer.Argument(metavar="DIR", help="the directory of a run, or the folder of an identity")]
Since = Annotated[str, typer.Option("--since", help="2026-11-23, 2026-11-23T14:00 (UTC), or 90m, 2h, 3d ago")]
Device = Annotated[
    str, typer.Option("--device", metavar="ID", help="only what this device did, or what was done to it")
]

_AGO = re.compile(r"(\d+)([mhd])")
_AGO_S = {"m": 60, "h": 3600, "d": 86400}


class Format(StrEnum):
    """What ``export`` writes."""

    JSONL = "jsonl"
    CSV = "csv"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.add_typer(audit, name="audit", epilog=EXAMPLE)


@audit.command("show", epilog=EXAMPLE)
@verb("audit-show")
def show(
    where: Source,
    since: Since = "",
    device: Device = "",
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """The entries of an audit log, a line each."""
    found = list(_chosen(where, since, device))
    if not as_json:
        for entry in found:
            details = ", ".join(f"{key}={_word(value)}" for key, value in entry.values().items())
            print(
                f"{entry.number:>5}  {_time(entry)}  {entry.actor}  {entry.action}  {entry.subject}  {details}".rstrip()
            )
        print(f"{len(found)} entries")
    return {"entries": [_values(entry) for entry in found]}


@audit.command("export", epilog="Example: apportion audit export runs/first --output log.jsonl")
@verb("audit-export")
def export(
    where: Source,
    since: Since = "",
    device: Device = "",
    form: Annotated[Format, typer.Option("--format", help="jsonl is what `audit verify` reads")] = Format.JSONL,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="else to stdout")] = None,
) -> dict[str, Any]:
    """The entries as a file: whole, it can be checked by itself; with --since or --device it is for reading."""
    entries = _chosen(where, since, device)
    if output is None:
        count = _write(sys.stdout, entries, form)
    else:
        with output.open("w", encoding="utf-8", newline="") as file:
            count = _write(file, entries, form)
    print(f"{count} entries", file=sys.stderr)
    return {"entries": count}


@audit.command("verify", epilog="Example: apportion audit verify log.jsonl --head runs/first/summary.json")
@verb("audit-verify")
def verify(
    where: Annotated[Path, typer.Argument(metavar="FILE|DIR", help="an exported log, a run, or an identity")],
    head: Annotated[
        Path | None, typer.Option("--head", metavar="FILE", help="what was kept of its end: a run's summary.json")
    ] = None,
    trust: Annotated[
        Path | None, typer.Option("--trust", metavar="FILE", help="the signing.pub that must have signed the head")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Whether every entry is there, in its place and unchanged; exit status 1 with the first that is not."""
    from coordinator.audit_log.chain import check_entries, read_entries
    from coordinator.audit_log.head import compared
    from coordinator.cli.audit_head import read_head

    if where.is_dir():
        checked = check_entries(_entries(where))
        kept = where / "summary.json"
        head = head or (kept if kept.is_file() else None)
    else:
        with _opened(where) as file:
            checked = check_entries(read_entries(file))
    end = None if head is None else read_head(head)
    findings = [*checked.findings, *([] if end is None else compared(checked, end))]
    signed = _signature(end, where, trust, findings)
    result = {
        "ok": not findings,
        "entries": checked.count,
        "head": checked.head,
        "kept_head": None if end is None else {"entries": end.entries, "head": end.head},
        "signed": signed,
        "findings": findings,
    }
    if findings:
        message = f"{len(findings)} findings, the first one: {findings[0]}"
        hint = "hold it against a copy that was exported earlier; what is before the first finding is as it was written"
        result["error"] = {"code": "findings", "message": message, "hint": hint}
    if not as_json:
        _tell(checked, end, signed, findings)
    return result


def _signature(end: Head | None, where: Path, trust: Path | None, findings: list[str]) -> bool:
    """Whether the head is signed by a key that is trusted; one that is not, and should be, is a finding.

    Raises:
        ConfigError: the file of keys cannot be read.
    """
    from coordinator.audit_log.head import is_signed_by

    if end is None:
        if trust is not None:
            findings.append("there is no head to check the signature of; give --head the run's summary.json")
        return False
    if trust is None:
        identity = _identity_of(where) if where.is_dir() else None
        trust = None if identity is None else identity / "signing.pub"
    if trust is None:
        return False
    from edge.identity.trust import Trust

    if is_signed_by(end, Trust.load(trust).given):
        return True
    findings.append(f"no key of {trust} has signed the head of entry {end.entries}")
    return False


def _identity_of(run_dir: Path) -> Path | None:
    """The folder of a run's identity, where it is on this machine."""
    from coordinator.run_file.loading import load_config_text

    if (run_dir / "identity.sqlite").is_file():
        return None
    with ledger_of(run_dir) as ledger:
        config = load_config_text(ledger.federation().config, folder=run_dir)
    identity = Path(config.broker.identity) if config.broker.identity else None
    return identity if identity is not None and (identity / "signing.pub").is_file() else None


def _entries(where: Path) -> Iterator[Entry]:
    if (where / "identity.sqlite").is_file():
        from coordinator.identity.records import Records

        records = Records(where / "identity.sqlite")
        try:
            yield from records.log_entries()
        finally:
            records.close()
        return
    with ledger_of(where) as ledger:
        yield from ledger.audit_log.entries()


def _chosen(where: Path, since: str, device: str) -> Iterator[Entry]:
    from coordinator.audit_log import actors

    since_ms, who = _since_ms(since), actors.device(device) if device else ""
    for entry in _entries(where):
        if entry.at_ms >= since_ms and (not who or who in (entry.actor, entry.subject)):
            yield entry


def _since_ms(text: str) -> int:
    now = datetime.datetime.now(datetime.UTC)
    if not text:
        return 0
    if ago := _AGO.fullmatch(text):
        return round((now.timestamp() - int(ago[1]) * _AGO_S[ago[2]]) * 1000)
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise parse_problem("--since", f"'{text}' is no time; write 2026-11-23, 2026-11-23T14:00 or 2h") from error
    return round((found if found.tzinfo else found.replace(tzinfo=datetime.UTC)).timestamp() * 1000)


def _opened(path: Path) -> Any:
    try:
        return path.open("rb")
    except OSError as error:
        raise parse_problem("FILE|DIR", f"{path} cannot be read ({error.strerror})") from error


def _write(file: Any, entries: Iterator[Entry], form: Format) -> int:
    count = 0
    if form is Format.JSONL:
        for entry in entries:
            file.write(entry.line().decode() + "\n")
            count += 1
        return count
    table = csv.writer(file)
    table.writerow(["number", "time", "actor", "action", "subject", "details", "previous", "digest"])
    for entry in entries:
        count += 1
        details = bytes(entry.details).decode()
        told = (entry.actor, entry.action, entry.subject, details)
        table.writerow([entry.number, _time(entry), *map(_cell, told), entry.previous, entry.digest])
    return count


def _cell(text: str) -> str:
    """A spreadsheet runs what begins like a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _word(value: Any) -> str:
    text = str(value)
    return repr(text) if " " in text or not text.isprintable() else text


def _time(entry: Entry) -> str:
    return datetime.datetime.fromtimestamp(entry.at_ms / 1000, datetime.UTC).isoformat(timespec="milliseconds")


def _values(entry: Entry) -> dict[str, Any]:
    values = {name: getattr(entry, name) for name in entry.__struct_fields__}
    return values | {"details": entry.values(), "time": _time(entry)}


def _tell(checked: Checked, end: Head | None, signed: bool, findings: list[str]) -> None:
    for words in findings:
        print(words)
    if findings:
        print(f"{len(findings)} finding{'s' * (len(findings) > 1)} in {checked.count} entries")
        return
    print(f"{checked.count} entries, each in its place and unchanged; head {checked.head}")
    if end is None:
        print("no head was kept of this log: entries cut off its end would not show")
    else:
        by = f"signed by {end.key[:16]}" if signed else "not signed by a key that is known here"
        print(f"entry {end.entries} is the head that was kept, {by}")
