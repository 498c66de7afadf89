"""``apportion relay``: arguments of a site's relay."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from edge.contracts import topics
from edge.contracts.errors import ConfigError, MessageRejected
from edge.identity.trust import Trust
from edge.policy.arguments import add_policy_arguments, guard_of, read_policy
from edge.relay.relay import Relay
from edge.relay.settings import RelaySettings
from edge.relay.site_key import SiteKey
from edge.runtimes import DEFAULT, RUNTIMES
from edge.supervisor.outbox import farewell_message
from edge.system.exit_status import EXIT_STATUSES
from edge.system.long_running import run_until_stopped
from edge.transfer.artifact_store import ArtifactStore
from edge.transport.broker_address import BrokerAddress, parse_broker
from edge.transport.mqtt import MqttTransport
from edge.transport.shown_password import PASSWORD_VARIABLE, tell_if_shown

MB = 2**20
T = TypeVar("T")

_EXAMPLE = f"""\
A password that neither URL has comes from {PASSWORD_VARIABLE}.
{EXIT_STATUSES}

example:
  apportion relay --broker mqtts://broker.local:8883 --ca ca.pem --cert relay.pem --key relay.key \\
      --federation demo --device hall-3 --store ~/.apportion-relay --site-broker mqtt://127.0.0.1 --min-devices 2
"""


def relay_command(arguments: list[str]) -> int:
    """Run a relay until it is stopped; the exit status as the help says."""
    return run_until_stopped(_parser(), _relay, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="apportion relay",
        description="Stand for the devices of a site in a federation: one order down, one update up.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--broker", required=True, metavar="URL", help="the coordinator's: mqtt://[user:password@]host[:port], mqtts://"
    )
    add(
        "--user",
        metavar="NAME",
        help="user name at the coordinator's broker when the URL has none; else the relay's id",
    )
    add("--ca", metavar="FILE", help="authority that signed that broker's certificate")
    add("--cert", metavar="FILE", help="the relay's certificate")
    add("--key", metavar="FILE", help="its private key")
    add(
        "--trust",
        type=Path,
        metavar="FILE",
        help="follow only orders signed by this key: the coordinator's signing.pub",
    )
    add("--federation", required=True, metavar="NAME", help="federation to join")
    add("--device", required=True, metavar="ID", help="the relay's id in it")
    add("--site-broker", required=True, metavar="URL", help="the broker that the site's devices connect to")
    add("--site-user", metavar="NAME", help="user name there when the URL has none; else coordinator")
    add("--site-ca", metavar="FILE", help="authority that signed that broker's certificate")
    add("--site-cert", metavar="FILE", help="the relay's certificate there, a coordinator's")
    add("--site-cert-key", metavar="FILE", help="its private key")
    add("--site-key", type=Path, metavar="FILE", help="sign the site's orders with this key: the site's signing.key")
    add("--site", metavar="NAME", help="federation name for the site's devices; else the relay's id")
    add(
        "--store",
        required=True,
        type=Path,
        metavar="DIR",
        help="folder for artifacts, weights and the devices' updates",
    )
    add("--quota-mb", type=float, default=0.0, metavar="N", help="disk for the store; 0 = no limit")
    add("--runtime", default=DEFAULT, choices=sorted(RUNTIMES), help="runtime that the site's devices train with")
    add("--min-devices", type=int, default=1, metavar="N", help="pass nothing on that fewer devices stand behind")
    add("--least-budget-mb", type=float, default=0.0, metavar="N", help="serve no device with a smaller budget")
    add("--share", type=float, default=0.8, metavar="S", help="share of an order's time that the devices have")
    add("--connect-timeout-s", type=float, default=10.0, metavar="S", help="give up the first connection after this")
    add("--log-level", default="info", choices=["debug", "info", "warning", "error"], help="what goes to stderr")
    add_policy_arguments(parser)
    return parser


def _relay(chosen: argparse.Namespace) -> Relay:
    problems: list[str] = []
    site = chosen.site or chosen.device
    for what, name in (("federation", chosen.federation), ("device", chosen.device), ("site", site)):
        try:
            topics.check_name(name, what=f"--{what}:")
        except MessageRejected as error:
            problems.append(str(error))
    for flag, value in (("quota-mb", chosen.quota_mb), ("least-budget-mb", chosen.least_budget_mb)):
        if value < 0:
            problems.append(f"--{flag}: {value} is negative; 0 means no limit")
    if chosen.min_devices < 1:
        problems.append(f"--min-devices: {chosen.min_devices} given, at least 1 expected")
    if not 0 < chosen.share < 1:
        problems.append(f"--share: {chosen.share:g} given, a share between 0 and 1 expected")
    tell_if_shown(chosen.broker, "--broker")
    above = _read(
        lambda: parse_broker(
            chosen.broker, user=chosen.user or chosen.device, ca=chosen.ca, certificate=chosen.cert, key=chosen.key
        ),
        problems,
    )
    below = _read(
        lambda: parse_broker(
            chosen.site_broker,
            user=chosen.site_user or "coordinator",
            ca=chosen.site_ca,
            certificate=chosen.site_cert,
            key=chosen.site_cert_key,
        ),
        problems,
    )
    trust = None if chosen.trust is None else _read(lambda: Trust.load(chosen.trust.expanduser()), problems)
    key = None if chosen.site_key is None else _read(lambda: SiteKey.load(chosen.site_key.expanduser()), problems)
    if above is not None and below is not None and (above.places, chosen.federation) == (below.places, site):
        problems.append(f"--site: '{site}' at this broker is the federation above; give the site a name of its own")
    policy = read_policy(chosen, problems)
    if problems or above is None or below is None:
        raise ConfigError(problems, hint="apportion relay --help")
    try:
        store = ArtifactStore(chosen.store.expanduser(), quota_bytes=round(chosen.quota_mb * MB))
    except OSError as error:
        raise ConfigError([f"--store: {error}"]) from error
    settings = RelaySettings(
        federation=chosen.federation,
        device=chosen.device,
        site=site,
        runtime=chosen.runtime,
        min_devices=chosen.min_devices,
        least_budget_bytes=round(chosen.least_budget_mb * MB),
        share=chosen.share,
        trust=trust,
        key=key,
        policy=guard_of(policy, store.root),
    )
    return Relay(settings, *_transports(settings, above, below, chosen.connect_timeout_s), store)


def _transports(
    settings: RelaySettings, above: BrokerAddress, below: BrokerAddress, connect_timeout_s: float
) -> tuple[MqttTransport, MqttTransport]:
    """The relay's connections to the coordinator's broker and to the site's."""
    device, site = settings.device, settings.site
    return (
        MqttTransport(
            above,
            client_id=above.client_id(device, f"{settings.federation}/{device}"),
            subscriptions=topics.device_filters(settings.federation, device),
            will=farewell_message(settings.federation, device, "connection lost"),
            connect_timeout_s=connect_timeout_s,
        ),
        MqttTransport(
            below,
            client_id=below.client_id("coordinator", f"{site}/relay"),
            subscriptions=[topics.coordinator_filter(site)],
            connect_timeout_s=connect_timeout_s,
            inflight=64,
        ),
    )


def _read(read: Callable[[], T], problems: list[str]) -> T | None:
    try:
        return read()
    except ConfigError as error:
        problems += error.problems
        return None
