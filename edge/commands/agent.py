"""``apportion agent``: a device agent from its arguments. Imports nothing heavy."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from edge.agent import Agent
from edge.commands.agent_arguments import agent_parser
from edge.commands.condition_arguments import read_conditions
from edge.contracts import topics
from edge.contracts.errors import ConfigError, MessageRejected
from edge.home_assistant.arguments import home_of, read_home
from edge.identity.credentials import CertificateFiles
from edge.identity.trust import Trust
from edge.policy.arguments import guard_of, read_policy
from edge.runtimes.environments import runtime_python
from edge.supervisor.outbox import farewell_message
from edge.supervisor.settings import AgentSettings
from edge.system.long_running import run_until_stopped
from edge.transfer.artifact_store import ArtifactStore
from edge.transport.broker_address import BrokerAddress, parse_broker
from edge.transport.mqtt import MqttTransport, tls_context
from edge.transport.shown_password import tell_if_shown

MB = 2**20
MOST_UNSENT_BYTES, MOST_QUEUED = 8 * MB, 256
"""A broker that reads nothing, and asks for more and more, takes no more of a device's memory."""
MOST_TAGS = 64
"""A hello holds no more."""


def agent_command(arguments: list[str]) -> int:
    """Run an agent until it is stopped; the exit status as the help says."""
    return run_until_stopped(agent_parser(), _agent, arguments)


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
