"""``apportion ca``: the authority of a fleet. Who may connect to the broker, and whose orders devices follow."""

from __future__ import annotations

import datetime
import os
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.ca_listing import CRL_EXAMPLE, LS_EXAMPLE, crl, ls
from coordinator.cli.ca_root import IDENTITY, ROTATE_EXAMPLE, init, rotate
from coordinator.cli.ca_signing_key import EXAMPLE as SIGNING_KEY_EXAMPLE
from coordinator.cli.ca_signing_key import signing_key
from coordinator.cli.command import parse_problem, verb

if TYPE_CHECKING:
    from coordinator.identity.authority import Authority, Issued


EXAMPLE = "Example: apportion ca init identity"
RABBITMQ_EXAMPLE = "Example: apportion ca rabbitmq --out cluster --node mq1.local --node mq2.local --node mq3.local"

Folder = Annotated[Path, typer.Option("--dir", metavar="DIR", help="folder of the identity")]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")]
Replace = Annotated[bool, typer.Option("--replace", help="revoke the certificate that stands under that name")]
MAX_FILE_BYTES = 1 << 16


def register(app: typer.Typer) -> None:
    """Add the verb."""
    group = typer.Typer(no_args_is_help=True, help="Certificates, revocation and claim tokens.", epilog=EXAMPLE)
    group.command("init", epilog=EXAMPLE)(init)
    group.command("issue-server", epilog="Example: apportion ca issue-server --name broker.local")(issue_server)
    group.command("issue-coordinator", epilog="Example: apportion ca issue-coordinator digits")(issue_coordinator)
    group.command("sign", epilog="Example: apportion ca sign device.csr --device pi-07")(sign)
    group.command("revoke", epilog="Example: apportion ca revoke pi-07")(revoke)
    group.command("crl", epilog=CRL_EXAMPLE)(crl)
    group.command("ls", epilog=LS_EXAMPLE)(ls)
    group.command("mosquitto", epilog="Example: apportion ca mosquitto --out broker")(mosquitto)
    group.command("rabbitmq", epilog=RABBITMQ_EXAMPLE)(rabbitmq)
    group.command("rotate", epilog=ROTATE_EXAMPLE)(rotate)
    group.command("signing-key", epilog=SIGNING_KEY_EXAMPLE)(signing_key)
    group.command("token", epilog="Example: apportion ca token pi-07 --expires 1h")(token)
    app.add_typer(group, name="ca")


@verb("ca")
def issue_server(
    name: Annotated[list[str], typer.Option(help="host name or address clients use; repeat for several")],
    folder: Folder = IDENTITY,
    replace: Replace = False,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Key and certificate of a broker."""
    with _open(folder) as authority:
        return _issued(authority.issue_server(name, replace=replace), as_json=as_json)


@verb("ca")
def issue_coordinator(
    federation: Annotated[str, typer.Argument(metavar="FEDERATION", help="name of the federation it coordinates")],
    folder: Folder = IDENTITY,
    shards: Annotated[int, typer.Option(min=0, max=64, help="for each of store.shards one more")] = 0,
    replace: Replace = False,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Key and certificate of the coordinator of one federation."""
    with _open(folder) as authority:
        issued = _issued(authority.issue_coordinator(federation, replace=replace), as_json=as_json)
        more = [authority.issue_coordinator(federation, shard=n, replace=replace) for n in range(shards)]
        return {**issued, **({"shards": [_issued(one, as_json=as_json) for one in more]} if more else {})}


@verb("ca")
def sign(
    request: Annotated[Path, typer.Argument(metavar="CSR", help="the device's request, as apportion csr writes it")],
    device: Annotated[str, typer.Option(help="id of the device")],
    folder: Folder = IDENTITY,
    replace: Replace = False,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Certificate of a device for the key in its request."""
    try:
        with request.open("rb") as file:
            data = file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise parse_problem("CSR", f"{request}: {error.strerror}") from error
    with _open(folder) as authority:
        return _issued(authority.sign_device(data, device, replace=replace), as_json=as_json)


@verb("ca")
def revoke(
    name: Annotated[str, typer.Argument(metavar="ID", help="device id, @federation of a coordinator, or a host")],
    folder: Folder = IDENTITY,
    reason: Annotated[str, typer.Option(help="kept in the record")] = "revoked",
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Revoke the certificates, the browser's key and the unused claim tokens of a name; may be repeated."""
    with _open(folder) as authority:
        revoked = authority.revoke(name, reason=reason)
        crl_file = str(authority.folder.crl)
    if not as_json:
        what = "browser's key" if any(one.serial.startswith("key-") for one in revoked) else "certificates"
        print(f"{name}: {len(revoked)} {what} revoked. Give the broker {crl_file} and reload it")
    return {"name": name, "revoked": [certificate.serial for certificate in revoked], "crl": crl_file}


@verb("ca")
def mosquitto(
    out: Annotated[Path, typer.Option(metavar="DIR", help="folder to write; an earlier one is brought up to date")],
    server: Annotated[str, typer.Option(metavar="HOST", help="which server's certificate, if there are several")] = "",
    port: Annotated[int, typer.Option(min=1, max=65_535, help="port to listen at")] = 8883,
    bind: Annotated[str, typer.Option(metavar="ADDRESS", help="address to listen at; empty: all")] = "",
    web_socket_port: Annotated[
        int, typer.Option(min=0, max=65_535, metavar="PORT", help="listen for browsers too, at this port (wss)")
    ] = 0,
    web_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="full chain for that listener, of an authority phones trust")
    ] = None,
    web_key: Annotated[Path | None, typer.Option(metavar="FILE", help="its key")] = None,
    at: Annotated[Path | None, typer.Option(metavar="PATH", help="where the broker will find the folder")] = None,
    devices: Annotated[int, typer.Option(min=1, max=1_000_000, help="how many connect at most")] = 10_000,
    folder: Folder = IDENTITY,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Everything a Mosquitto needs: configuration, topic rules, certificates, revocation list, browsers' passwords."""
    from coordinator.brokers.broker_files import write_broker_folder
    from coordinator.identity.names import check_host
    from coordinator.identity.web_certificate import read_web_certificate

    if bind:
        check_host(bind)
    if web_socket_port == port:
        raise parse_problem("--web-socket-port", f"{port} is --port's; give another")
    shown = None
    if web_certificate is not None or web_key is not None:
        if web_certificate is None or web_key is None or not web_socket_port:
            raise parse_problem("--web-certificate", "goes with --web-key and --web-socket-port; give all three")
        shown = read_web_certificate(web_certificate, web_key)
        if warning := shown.warning():
            print(warning, file=sys.stderr)
    config = write_broker_folder(
        folder,
        out,
        server=server,
        port=port,
        bind=bind,
        at=at,
        web_socket_port=web_socket_port,
        web_certificate=shown,
        devices=devices,
    )
    if not as_json:
        print(f"{config}: start mosquitto -c {config}, or include_dir {out} in the system's; after a change write the")
        print("folder anew and reload it (SIGHUP)")
        if os.geteuid() == 0 and not at:  # Mosquitto gives up root's rights before it reads them
            print(f"started as root it reads them as the user mosquitto: chown -R mosquitto: {out}")
    return {"config": str(config), "out": str(out)}


@verb("ca")
def token(
    device: Annotated[str, typer.Argument(metavar="DEVICE", help="id of the device it is for")],
    expires: Annotated[str, typer.Option(metavar="TIME", help="90s, 30m, 1h, 7d")] = "1h",
    folder: Folder = IDENTITY,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """A token that a device may trade for its certificate, once. It is shown now and never again."""
    from coordinator.identity.claims import create_token, parse_duration

    seconds = parse_duration(expires)
    with _open(folder) as authority:
        made = create_token(authority, device, seconds)
        until = _date(authority.now() + seconds)
    if not as_json:
        print(made)
    return {"device": device, "token": made, "expires": until}


def _open(folder: Path) -> Authority:
    from coordinator.identity.authority import Authority

    return Authority(folder)


def _issued(issued: Issued, *, as_json: bool) -> dict[str, Any]:
    from coordinator.identity.folder import key_beside

    certificate, key = issued.certificate, key_beside(issued.path)
    until = _date(certificate.not_after)
    if not as_json:
        print(
            f"{issued.path}: {certificate.kind} '{certificate.name}' until {until}{'' if issued.is_new else ' (kept)'}"
        )
    return {
        "name": certificate.name,
        "kind": certificate.kind,
        "certificate": str(issued.path),
        "key": str(key) if key.exists() else None,
        "serial": certificate.serial,
        "not_after": until,
        "is_new": issued.is_new,
    }


def _date(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"


@verb("ca")
def rabbitmq(
    out: Annotated[Path, typer.Option(metavar="DIR", help="folder to write; an earlier one is brought up to date")],
    node: Annotated[
        list[str], typer.Option(metavar="[NAME@]HOST[:PORT]", help="a node as clients reach it; once for each")
    ],
    at: Annotated[
        str, typer.Option(metavar="PATH", help="where each node finds its folder; empty: where it is written")
    ] = "/etc/rabbitmq",
    bind: Annotated[str, typer.Option(metavar="ADDRESS", help="address for clients; empty: all")] = "",
    cluster_bind: Annotated[str, typer.Option(metavar="ADDRESS", help="address for other nodes; empty: all")] = "",
    devices: Annotated[int, typer.Option(min=1, max=1_000_000, help="how many connect at most")] = 10_000,
    folder: Annotated[Path, typer.Option("--dir", metavar="DIR", help="folder of the identity")] = Path("identity"),
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Everything the nodes of a RabbitMQ 4 cluster need: configuration, users, topic rules, certificates, cookie."""
    from coordinator.brokers.cluster_files import write_cluster_folders
    from coordinator.brokers.nodes import parse_nodes
    from coordinator.identity.names import check_host

    for address in filter(None, (bind, cluster_bind)):
        check_host(address)
    if at and not at.startswith("/"):
        raise parse_problem("--at", f"{at!r} is not absolute: nodes read it as it stands")
    made = write_cluster_folders(
        folder,
        out,
        parse_nodes(node),
        at=PurePosixPath(at) if at else None,
        bind=bind,
        cluster_bind=cluster_bind,
        devices=devices,
    )
    if not as_json:
        for path in made.folders:
            print(f"{path}: for that node's {at or path}; erlang.cookie goes to /var/lib/rabbitmq/.erlang.cookie")
        print(f'[broker] url = "{made.url}"')
        print("after a change write the folders anew, copy them, and run the script 'apply' at one node")
    return {"out": str(out), "url": made.url, "folders": [str(path) for path in made.folders]}
