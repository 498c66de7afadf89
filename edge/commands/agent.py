"""``apportion agent``: arguments of the device agent. Imports nothing heavy."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from edge.agent import Agent
from edge.commands.condition_arguments import add_condition_arguments, read_conditions
from edge.contracts import topics
from edge.contracts.errors import ConfigError, MessageRejected
from edge.home_assistant.arguments import add_home_arguments, home_of, read_home
from edge.identity.credentials import CertificateFiles
from edge.identity.trust import Trust
from edge.policy.arguments import add_policy_arguments, guard_of, read_policy
from edge.runtimes import DEFAULT, RUNTIMES
from edge.runtimes.environments import runtime_python
from edge.supervisor.outbox import farewell_message
from edge.supervisor.settings import AgentSettings
from edge.system.long_running import EXIT_STATUSES, run_until_stopped
from edge.transfer.artifact_store import ArtifactStore
from edge.transport.mqtt import PASSWORD_VARIABLE, BrokerAddress, MqttTransport, parse_broker, tls_context
from edge.transport.shown_password import tell_if_shown

MB = 2**20
MOST_UNSENT_BYTES, MOST_QUEUED = 8 * MB, 256
"""A broker that reads nothing, and asks for more and more, takes no more of a device's memory."""
MOST_TAGS = 64
"""A hello holds no more."""

_EXAMPLE = f"""\
The password is read from {PASSWORD_VARIABLE}.
{EXIT_STATUSES}

example:
  apportion agent --broker mqtts://pi-07@broker.local:8883 --ca ca.pem --federation demo --device pi-07 \\
      --data ~/images --store ~/.apportion --budget-mb 160
"""


def agent_command(arguments: list[str]) -> int:
    """Run an agent until it is stopped; the exit status as the help says."""
    return run_until_stopped(_parser(), _agent, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="apportion agent",
        description="Train submodels of a federation on this device's own data.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--broker",
        required=True,
        metavar="URL",
        help="mqtt://[user@]host[:port] or mqtts://...; a cluster's nodes parted by commas",
    )
    add("--user", metavar="NAME", help="user name at the broker when the URL has none; else the device id")
    add("--federation", required=True, metavar="NAME", help="federation to join")
    add("--device", required=True, metavar="ID", help="this device's id")
    add("--data", required=True, metavar="SOURCE", help="npz folder, image folders, CSV or package.module:function")
    add("--store", required=True, type=Path, metavar="DIR", help="folder for artifacts, weights and finished work")
    add(
        "--budget-mb",
        type=float,
        default=0.0,
        metavar="N",
        help="memory (1 MB = 2^20 bytes) for both processes together; 0 = no limit",
    )
    add("--quota-mb", type=float, default=0.0, metavar="N", help="disk for the store; 0 = no limit")
    add("--threads", type=int, default=0, metavar="N", help="most threads a step may use; 0 = as ordered")
    add("--ca", metavar="FILE", help="authority that signed the broker's certificate")
    add("--cert", metavar="FILE", help="this device's certificate")
    add("--key", metavar="FILE", help="its private key")
    add("--trust", type=Path, metavar="FILE", help="follow only orders signed by this key: the authority's signing.pub")
    add(
        "--trust-site",
        type=Path,
        metavar="FILE",
        help="and orders signed by this one: the signing.pub of a site's relay",
    )
    add("--runtime", default=DEFAULT, choices=sorted(RUNTIMES), help="runtime that trains")
    add(
        "--trainer-python",
        metavar="PATH",
        help="interpreter that has the runtime; else that of .venv-NAME, or this one",
    )
    add("--tag", action="append", default=[], metavar="TAG", help="a group it belongs to, for runs that ask for some")
    add("--self-test", action="store_true", help="repeat an artifact's self-test before its first use")
    add("--parent-pid", type=int, default=0, metavar="PID", help="end when this process does")
    add("--once", action="store_true", help="end after the first acknowledged assignment")
    add("--alive-file", type=Path, metavar="FILE", help="touched every 10 s while this agent's loop turns")
    add("--connect-timeout-s", type=float, default=10.0, metavar="S", help="give up the first connection after this")
    add("--log-level", default="info", choices=["debug", "info", "warning", "error"], help="what goes to stderr")
    add_condition_arguments(parser)
    add_policy_arguments(parser)
    add_home_arguments(parser)
    return parser


def _agent(chosen: argparse.Namespace) -> Agent:
    problems = []
    for what in ("federation", "device"):
        try:
            topics.check_name(getattr(chosen, what), what=f"--{what}:")
        except MessageRejected as error:
            problems.append(str(error))
    for tag in chosen.tag:
        try:
            topics.check_name(tag, what="--tag:")
        except MessageRejected as error:
            problems.append(str(error))
    if len(set(chosen.tag)) > MOST_TAGS:
        problems.append(f"--tag: {len(set(chosen.tag))} tags given, at most {MOST_TAGS} are told")
    for flag, value in (("budget-mb", chosen.budget_mb), ("quota-mb", chosen.quota_mb), ("threads", chosen.threads)):
        if value < 0:
            problems.append(f"--{flag}: {value} is negative; 0 means no limit")
    conditions, policy = read_conditions(chosen, problems), read_policy(chosen, problems)
    home = read_home(chosen, problems)
    tell_if_shown(chosen.broker, "--broker")
    try:
        address = parse_broker(
            chosen.broker, user=chosen.user or chosen.device, ca=chosen.ca, certificate=chosen.cert, key=chosen.key
        )
    except ConfigError as error:
        problems += error.problems
    trust = None
    if chosen.trust_site is not None and chosen.trust is None:
        problems.append("--trust-site: the key of a site's relay goes with --trust and the coordinator's signing.pub")
    try:
        site = None if chosen.trust_site is None else chosen.trust_site.expanduser()
        trust = None if chosen.trust is None else Trust.load(chosen.trust.expanduser(), site)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems, hint="apportion agent --help")
    transport = MqttTransport(
        address,
        client_id=address.client_id(chosen.device, f"{chosen.federation}/{chosen.device}"),
        subscriptions=topics.device_filters(chosen.federation, chosen.device),
        will=farewell_message(chosen.federation, chosen.device, "connection lost"),
        connect_timeout_s=chosen.connect_timeout_s,
        most_unsent=MOST_UNSENT_BYTES,
        most_queued=MOST_QUEUED,
    )
    try:
        store = ArtifactStore(chosen.store.expanduser(), quota_bytes=round(chosen.quota_mb * MB))
    except OSError as error:
        raise ConfigError([f"--store: {error}"]) from error
    if trust is not None:
        trust.keep_in(store.root / "trusted-keys")
    most_mb = None if policy is None else policy.memory.max_mb
    settings = AgentSettings(
        federation=chosen.federation,
        device=chosen.device,
        data=chosen.data,
        python=chosen.trainer_python or str(runtime_python(chosen.runtime)),
        runtime=chosen.runtime,
        budget_bytes=round(min(filter(None, (chosen.budget_mb, most_mb)), default=0.0) * MB),
        threads=chosen.threads,
        parent_pid=chosen.parent_pid,
        once=chosen.once,
        self_test=chosen.self_test,
        tags=tuple(dict.fromkeys(chosen.tag)),
        conditions=conditions,
        policy=guard_of(policy, store.root),
        trust=trust,
        certificate=own_certificate(address, transport),
        alive_file=None if chosen.alive_file is None else chosen.alive_file.expanduser(),
        # Only the authority that the owner named is asked for blobs, not any that the system knows.
        bulk_tls=partial(tls_context, address) if address.ca else None,
    )
    link = home_of(home, chosen.federation, chosen.device, settings.budget_bytes, store.root)
    return Agent(settings, transport, store, home=link)


def own_certificate(address: BrokerAddress, transport: MqttTransport) -> CertificateFiles | None:
    """The files of the certificate that ``transport`` shows, where its root is known; None without one."""
    if address.ca is None or address.certificate is None or address.key is None:
        return None
    files = (Path(address.ca), Path(address.certificate), Path(address.key))
    return CertificateFiles(*files, taken_up=transport.take_up_certificate)
