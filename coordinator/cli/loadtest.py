"""``apportion loadtest``: thousands of light devices against a coordinator and a broker on this machine."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.command import parse_problem, verb
from edge.runtimes import DEFAULT

EXAMPLE = "Example: apportion loadtest --devices 200 --participants 50 --rounds 2 --json"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("loadtest", epilog=EXAMPLE)(loadtest)


@verb("loadtest")
def loadtest(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG]", help="a run file, for its model and method; unset: a perceptron and fedavg"),
    ] = None,
    devices: Annotated[int, typer.Option(min=1, max=100_000, help="light devices that are connected")] = 200,
    participants: Annotated[int, typer.Option(min=1, help="of them in each round; at most --devices")] = 50,
    rounds: Annotated[int, typer.Option(min=1, help="rounds")] = 2,
    update_mb: Annotated[float, typer.Option(min=0.001, max=2000.0, help="size of an update, MB of 10^6 bytes")] = 1.0,
    tiny: Annotated[bool, typer.Option("--tiny", help="the smallest model: for many rounds")] = False,
    broker: Annotated[str, typer.Option(help="embedded, mosquitto, mqtt://host:port or mqtts://...")] = "mosquitto",
    attach: Annotated[
        str, typer.Option(help="federation of a coordinator that runs already at that URL; devices only")
    ] = "",
    user: Annotated[str, typer.Option(help="at a broker with a URL; its password is APPORTION_BROKER_PASSWORD")] = "",
    ca: Annotated[str, typer.Option(help="PEM of the authority of a broker at mqtts://")] = "",
    tls: Annotated[bool, typer.Option("--tls", help="mutual TLS, an own certificate for every device")] = False,
    seconds: Annotated[float, typer.Option(min=1.0, help="the most the test takes, connecting apart")] = 600.0,
    processes: Annotated[int, typer.Option(min=0, help="of light devices; 0: one for each processor")] = 0,
    cuts: Annotated[int, typer.Option(min=0, max=100, help="cuts of every device's link in each transfer")] = 0,
    probes: Annotated[float, typer.Option(min=0.0, help="control round trips timed each second")] = 20.0,
    heartbeat_s: Annotated[float, typer.Option(min=1.0, max=30.0, help="between a device's heartbeats")] = 25.0,
    one_download: Annotated[
        bool, typer.Option("--one-download", help="the weights once for each process, not for each device")
    ] = False,
    max_rss_mb: Annotated[float | None, typer.Option(help="limit: coordinator's peak memory, MB of 2^20")] = None,
    max_broker_rss_mb: Annotated[float | None, typer.Option(help="limit: the broker's")] = None,
    max_trip_ms: Annotated[float | None, typer.Option(help="limit: control round trip, 99th percentile")] = None,
    max_wire: Annotated[float | None, typer.Option(help="limit: bytes on the wire over payload")] = None,
    max_cut_extra: Annotated[float | None, typer.Option(help="limit: extra share of cut transfers")] = None,
    max_rss_slope_mb: Annotated[float | None, typer.Option(help="limit: growth in 1,000 rounds, MB of 2^20")] = None,
    keep: Annotated[Path | None, typer.Option(help="folder for the run and the broker; unset: a temporary one")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Connect light devices, run rounds with some of them, and measure coordinator, broker and wire.

    Light devices speak the whole protocol and train nothing: an update is the received weights, slightly scaled.
    Everything is bounded in time and ended again. The status is 1 when a limit given does not hold.
    """
    from coordinator.loadtest.machine_limits import check_room, raise_open_files
    from coordinator.loadtest.run_file import SMALLEST_MB
    from coordinator.loadtest.site import Plan, run_load_test
    from coordinator.loadtest.verdict import Limits, table, values_of

    is_here = broker in ("embedded", "mosquitto")
    if participants > devices:
        raise parse_problem("--participants", f"{participants} of {devices} devices; give at most as many")
    if attach and is_here:
        raise parse_problem("--attach", f"a coordinator that runs already has a broker with a URL, not {broker}")
    if tls and broker != "mosquitto":
        raise parse_problem("--tls", "certificates are made for a Mosquitto that the test starts; leave --broker out")
    count = processes or min(os.cpu_count() or 1, max(1, devices // 100))
    check_room(devices, count, raise_open_files())
    plan = Plan(
        devices=devices,
        participants=participants,
        rounds=rounds,
        update_mb=SMALLEST_MB if tiny else update_mb,
        config="" if config is None else config.read_text(encoding="utf-8"),
        config_folder=str((config or Path(".")).resolve().parent),
        broker=broker,
        attach=attach,
        user=user,
        password="" if is_here else os.environ.get("APPORTION_BROKER_PASSWORD", ""),
        ca=ca,
        tls=tls,
        seconds=seconds,
        processes=count,
        runtimes=_runtimes(config),
        heartbeat_s=heartbeat_s,
        probes_per_s=probes,
        cuts=cuts,
        fetches=not one_download,
    )
    with tempfile.TemporaryDirectory(prefix="apportion-load-") as name:
        folder = Path(name) if keep is None else keep
        folder.mkdir(parents=True, exist_ok=True)
        outcome = run_load_test(plan, folder)
    limits = Limits(max_rss_mb, max_broker_rss_mb, max_trip_ms, max_wire, max_cut_extra, max_rss_slope_mb)
    values = values_of(plan, outcome, limits)
    if not as_json:
        print(table(values))
        if "error" in values:
            print(f"error [{values['error']['code']}]: {values['error']['message']}")
    return values


def _runtimes(config: Path | None) -> dict[str, str]:
    """What light devices say they have: the runtimes that the run allows, in the versions that are here."""
    from importlib.metadata import PackageNotFoundError, version

    from coordinator.run_file.loading import load_config

    found = {}
    for runtime in (DEFAULT,) if config is None else load_config(config).runtime.names:
        try:
            found[runtime] = version(runtime)
        except PackageNotFoundError:
            found[runtime] = "not here"
    return found
