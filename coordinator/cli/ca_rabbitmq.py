"""``apportion ca rabbitmq``: the folders of a RabbitMQ 4 cluster's nodes."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import typer

from coordinator.cli.command import parse_problem, verb

EXAMPLE = "Example: apportion ca rabbitmq --out cluster --node mq1.local --node mq2.local --node mq3.local"


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
    from coordinator.clusters.cluster_files import write_cluster_folders
    from coordinator.clusters.nodes import parse_nodes
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
