"""``apportion device``: machines become devices of a federation, stay in order, and leave it again."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.command import parse_problem, verb
from coordinator.cli.device_settings import AgentConditions, settled
from edge.runtimes import DEFAULT, INSTALLABLE

if TYPE_CHECKING:
    from coordinator.cli.device_reaching import Login

RUNTIME_HELP = f"{DEFAULT} (default) or {' or '.join(name for name in INSTALLABLE if name != DEFAULT)}"
EXAMPLE = "Example: apportion device add pi@raspberrypi.local --data '~/images'"

FLEET = Path("fleet")

Fleet = Annotated[Path, typer.Option("--fleet", metavar="DIR", help="folder of the fleet book")]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")]
Key = Annotated[str, typer.Option("--key", metavar="FILE", help="private key for SSH; else the agent's and the usual")]
AskPassword = Annotated[bool, typer.Option("--ask-password", help="ask for the SSH password, once for all targets")]
Port = Annotated[int | None, typer.Option(min=1, max=65_535, help="of SSH, for targets that do not say it")]
Accept = Annotated[str, typer.Option("--accept-host-key", metavar="SHA256:..", help="host key of a host not yet known")]
KnownHosts = Annotated[Path | None, typer.Option(metavar="FILE", help="host keys; else ~/.ssh/known_hosts")]
Wait = Annotated[float, typer.Option("--wait-s", min=1, help="how long to wait for a device's hello")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="do not wait for its hello")]
WebSocket = Annotated[str, typer.Option(metavar="URL", help="wss://host:port of the broker, for phones; kept")]
Adb = Annotated[bool, typer.Option("--adb", help="TARGET is a phone's serial number; none: the only phone there is")]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    group = typer.Typer(
        no_args_is_help=True, help="Provision, list, probe, upgrade and revoke devices.", epilog=EXAMPLE
    )
    group.command("add", epilog=EXAMPLE)(add)
    group.command("ls", epilog="Example: apportion device ls --here")(ls)
    group.command("probe", epilog="Example: apportion device probe pi@raspberrypi.local")(probe)
    group.command("logs", epilog="Example: apportion device logs pi-07 --lines 50")(logs)
    group.command("upgrade", epilog="Example: apportion device upgrade --all")(upgrade)
    group.command("revoke", epilog="Example: apportion device revoke pi-07 --reason lost")(revoke)
    group.command("claims", epilog="Example: apportion device claims --listen https://192.168.1.10:8443")(claims)
    app.add_typer(group, name="device")


@verb("device")
def add(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="TARGET", help="user@host[:port]; several are worked on together")
    ] = None,
    adb: Adb = False,
    qr: Annotated[bool, typer.Option("--qr", help="no TARGET: a claim link and its QR code for --device")] = False,
    print_script: Annotated[
        Path | None, typer.Option(metavar="DIR", help="no TARGET: the same as a script to read, with all it needs")
    ] = None,
    device: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="its id, one for each target; else the host's own name")
    ] = None,
    data: Annotated[str | None, typer.Option(help="its examples: a folder there, or package.module:function")] = None,
    federation: Annotated[str, typer.Option(metavar="NAME", help="kept in the book for later devices")] = "",
    broker: Annotated[str, typer.Option(metavar="URL", help="mqtts://host[:port] as devices reach it; kept")] = "",
    identity: Annotated[str, typer.Option(metavar="DIR", help="folder of apportion ca init; kept")] = "",
    config: Annotated[Path | None, typer.Option(metavar="RUN.toml", help="these three from a run file")] = None,
    broker_folder: Annotated[
        str, typer.Option(metavar="DIR", help="as apportion ca mosquitto --out wrote it; kept, for revocations")
    ] = "",
    broker_pid_file: Annotated[str, typer.Option(metavar="FILE", help="of the broker, if it is here; kept")] = "",
    runtime: Annotated[str | None, typer.Option(help=RUNTIME_HELP)] = None,
    budget_mb: Annotated[
        float | None, typer.Option(min=0, help="memory for the agent, MB of 2^20; 0: no limit")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=0, help="most threads of a step; 0: as ordered")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="another key has its certificate: revoke that")] = False,
    folder: Annotated[str | None, typer.Option(help="on the device; else .apportion/ID in its home")] = None,
    port: Port = None,
    key: Key = "",
    ask_password: AskPassword = False,
    accept_host_key: Accept = "",
    known_hosts: KnownHosts = None,
    wait_s: Wait = 90.0,
    no_wait: NoWait = False,
    train_between: Annotated[str, typer.Option(metavar="HH:MM-HH:MM", help="train at this time of day only")] = "",
    max_temperature_c: Annotated[float | None, typer.Option(min=1, max=150, help="train below this heat only")] = None,
    min_battery_percent: Annotated[
        float | None, typer.Option(min=0, max=100, help="train above this charge only")
    ] = None,
    only_charging: Annotated[bool, typer.Option("--only-charging", help="train on external power only")] = False,
    min_free_mb: Annotated[float | None, typer.Option(min=0, help="memory left to other programs")] = None,
    listen: Annotated[str, typer.Option(metavar="URL", help="with --qr: where devices claim, https://host:port")] = "",
    web_socket: WebSocket = "",
    expires: Annotated[str, typer.Option(metavar="TIME", help="with --qr: how long the link is good")] = "1h",
    qr_file: Annotated[Path | None, typer.Option(metavar="FILE", help="with --qr: the code as .png or .svg")] = None,
    machine: Annotated[str, typer.Option(help="with --print-script: aarch64 or x86_64")] = "aarch64",
    python: Annotated[str, typer.Option(help="with --print-script: the device's Python")] = "3.11",
    glibc: Annotated[str, typer.Option(help="with --print-script: the device's C library")] = "2.36",
    with_token: Annotated[
        str, typer.Option(metavar="URL", help="with --print-script: enrol there, with a claim token in the script")
    ] = "",
    fleet: Fleet = FLEET,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Make devices of machines: install the agent, enrol it, start it, wait for its hello, profile it.

    May be repeated: what is as it should be stays. Federation, broker and identity are given once.
    """
    from coordinator.cli.device_requests import Requests

    ids = device or []
    chosen = [qr, print_script is not None, adb or bool(targets)]
    if sum(chosen) != 1:
        raise parse_problem("TARGET", "one of user@host ..., --adb [SERIAL], --qr or --print-script DIR is wanted")
    conditions = AgentConditions(
        train_between=train_between,
        max_temperature_c=max_temperature_c,
        min_battery_percent=min_battery_percent,
        only_charging=only_charging,
        min_free_mb=min_free_mb,
    )
    requests = Requests(
        data=data, folder=folder, runtime=runtime, budget_mb=budget_mb, threads=threads, extra_flags=conditions.flags()
    )
    book, settings = settled(
        fleet,
        config=config,
        federation=federation,
        broker=broker,
        identity=identity,
        broker_folder=broker_folder,
        broker_pid_file=broker_pid_file,
        web_socket=web_socket,
        may_be_phones_only=qr,
    )
    if print_script is not None:
        from coordinator.cli.device_script import write_script

        return write_script(
            print_script,
            book,
            settings,
            requests,
            _one(ids, "--print-script"),
            machine=machine,
            python=python,
            glibc=glibc,
            claim_at=with_token,
            expires=expires,
        )
    if qr:
        from coordinator.cli.device_claiming import invite

        return invite(
            book,
            settings,
            _one(ids, "--qr"),
            listen=listen,
            expires=expires,
            qr_file=qr_file,
            wait_s=None if no_wait else wait_s,
        )
    from coordinator.cli.device_work import add_targets

    return add_targets(
        book,
        settings,
        requests,
        targets or [""],
        ids,
        adb=adb,
        login=_login(port, key, ask_password, accept_host_key, known_hosts),
        wait_s=None if no_wait else wait_s,
        replace=replace,
    )


@verb("device")
def ls(
    profiles: Annotated[bool, typer.Option("--profiles", help="what each device is, as last profiled")] = False,
    here: Annotated[bool, typer.Option("--here", help="ask over the broker who is there now; takes 2 s")] = False,
    fleet: Fleet = FLEET,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """The devices of the fleet book."""
    from coordinator.cli.device_table import listing
    from coordinator.cli.device_work import who_is_here
    from coordinator.fleet.book import FleetBook

    states = who_is_here(*settled(fleet)) if here else None
    return listing(FleetBook(fleet), profiles=profiles, states=states)


@verb("device")
def probe(
    target: Annotated[str, typer.Argument(metavar="ID|TARGET", help="a device of the book, or user@host[:port]")] = "",
    adb: Adb = False,
    port: Port = None,
    key: Key = "",
    ask_password: AskPassword = False,
    accept_host_key: Accept = "",
    known_hosts: KnownHosts = None,
    wait_s: Wait = 30.0,
    fleet: Fleet = FLEET,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """What a machine is, and whether a device can be made of it. Nothing is changed there."""
    from coordinator.cli.device_work import probe_target

    if not target and not adb:
        raise parse_problem("ID|TARGET", "a device of the book, user@host, or --adb is wanted")
    login = _login(port, key, ask_password, accept_host_key, known_hosts)
    return probe_target(fleet, target, login, adb=adb, wait_s=wait_s)


@verb("device")
def logs(
    device: Annotated[str, typer.Argument(metavar="ID", help="a device of the book")],
    lines: Annotated[int, typer.Option(min=1, max=10_000, help="from the end of the log")] = 40,
    key: Key = "",
    ask_password: AskPassword = False,
    known_hosts: KnownHosts = None,
    fleet: Fleet = FLEET,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """The end of a device's log."""
    from coordinator.cli.device_work import show_log

    return show_log(fleet, device, _login(None, key, ask_password, "", known_hosts), lines=lines)


@verb("device")
def upgrade(
    devices: Annotated[list[str] | None, typer.Argument(metavar="ID", help="devices of the book")] = None,
    everyone: Annotated[bool, typer.Option("--all", help="every device that can be reached")] = False,
    key: Key = "",
    ask_password: AskPassword = False,
    known_hosts: KnownHosts = None,
    wait_s: Wait = 90.0,
    no_wait: NoWait = False,
    fleet: Fleet = FLEET,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Bring this release to devices; an agent is stopped only when its packages or its settings change."""
    from coordinator.cli.device_work import upgrade_devices

    if bool(devices) == everyone:
        raise parse_problem("ID", "the ids of devices, or --all, is wanted")
    login = _login(None, key, ask_password, "", known_hosts)
    return upgrade_devices(fleet, devices or [], login, wait_s=None if no_wait else wait_s)


@verb("device")
def revoke(
    device: Annotated[str, typer.Argument(metavar="ID", help="a device of the book or of the identity")],
    reason: Annotated[str, typer.Option(help="kept in the identity's record")] = "revoked",
    identity: Annotated[str, typer.Option(metavar="DIR", help="where the book names none")] = "",
    broker_folder: Annotated[str, typer.Option(metavar="DIR", help="as ca mosquitto or rabbitmq --out wrote it")] = "",
    broker_pid_file: Annotated[str, typer.Option(metavar="FILE", help="of the broker, if it is here")] = "",
    keep: Annotated[bool, typer.Option("--keep-files", help="leave what is on the device as it is")] = False,
    key: Key = "",
    ask_password: AskPassword = False,
    known_hosts: KnownHosts = None,
    fleet: Fleet = FLEET,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Shut a device out at the broker, then remove the agent from it where it can be reached. May be repeated."""
    from coordinator.cli.device_removing import revoke_one

    book, settings = settled(
        fleet, identity=identity, broker_folder=broker_folder, broker_pid_file=broker_pid_file, is_whole=False
    )
    login = _login(None, key, ask_password, "", known_hosts)
    return revoke_one(book, settings, device, reason=reason, keep=keep, login=login)


@verb("device")
def claims(
    listen: Annotated[str, typer.Option(metavar="URL", help="https://host:port as devices reach it")] = "",
    duration: Annotated[str, typer.Option("--for", metavar="TIME", help="90s, 30m, 1h; else until interrupted")] = "",
    web_socket: WebSocket = "",
    fleet: Fleet = FLEET,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Answer devices that come with a claim link; phones find the page there, if --web-socket is known."""
    from coordinator.cli.device_claiming import serve_claims

    book, settings = settled(fleet, web_socket=web_socket)
    return serve_claims(book, settings, listen, duration)


def _one(ids: list[str], flag: str) -> str:
    if len(ids) != 1:
        raise parse_problem("--device", f"{flag} needs exactly one: its certificate is for that id")
    return ids[0]


def _login(port: int | None, key: str, ask_password: bool, fingerprint: str, known_hosts: Path | None) -> Login:
    from coordinator.cli.device_reaching import Login

    password = ""
    if ask_password:
        import getpass

        with contextlib.suppress(EOFError):
            password = getpass.getpass("SSH password (for all targets): ")
        if not password:
            raise parse_problem("--ask-password", "no password was given")
    key = str(Path(key).expanduser().absolute()) if key else ""  # kept in the book, for commands given elsewhere
    return Login(port=port, key=key, password=password, fingerprint=fingerprint, known_hosts=known_hosts)
