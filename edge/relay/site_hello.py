"""What a relay says of its site: the hello that stands for the devices that are here, and the orders it cannot take."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edge.contracts.errors import PolicyRefused
from edge.contracts.messages import AgentState, Heartbeat, Hello
from edge.contracts.plan import WorkOrder
from edge.contracts.release import RELEASE
from edge.relay.settings import RelaySettings
from edge.relay.site_devices import largest_weight, site_profile
from edge.relay.site_work import SiteWork
from edge.transfer.artifact_store import ArtifactStore
from profiles.bounds import MOST_EXAMPLES
from profiles.device import DeviceProfile


def site_hello(settings: RelaySettings, served: Sequence[Hello], said: Hello | None, in_hand: int) -> Hello | None:
    """The hello of a site whose devices are ``served``; None for one that nobody was ever heard of.

    Too few devices are told as data that cannot be read: the coordinator then waits for the site, or goes on without.

    Args:
        said: the hello before.
        in_hand: examples that an order in hand was given for, no fewer of which may be said until it is done; 0 = none.
    """
    if not served:
        hello = said
    else:
        most = largest_weight([hello.num_examples for hello in served])
        profile = site_profile(settings.device, settings.runtime, served)
        hello = Hello(
            device=settings.device,
            agent_version=RELEASE,
            profile=profile,
            runtimes=dict(profile.runtimes),
            num_examples=min(MOST_EXAMPLES, max(in_hand, sum(min(most, hello.num_examples) for hello in served))),
        )
    if hello is None or in_hand or len(served) >= settings.min_devices:
        return hello
    few = f"{len(served)} of at least {settings.min_devices} devices are here"
    return msgspec.structs.replace(hello, num_examples=0, data_error=few)


def nobody(settings: RelaySettings) -> Hello:
    """The hello of a relay that has heard of no device yet; never sent."""
    return Hello(
        device=settings.device,
        agent_version=RELEASE,
        profile=DeviceProfile(device=settings.device),
        runtimes={},
        num_examples=0,
        data_error=f"0 of at least {settings.min_devices} devices are here",
    )


def site_heartbeat(state: AgentState, work: SiteWork | None) -> Heartbeat:
    """Still here; a step is a device's update."""
    if work is None:
        return Heartbeat(state=state)
    return Heartbeat(
        state=state,
        assignment_id=work.order.assignment_id,
        step=len(work.reports),
        total_steps=len(work.record.examples),
    )


def shortfall(work: SiteWork, least: int) -> str:
    """Why too few updates are in; empty when there are at least ``least``."""
    if len(work.reports) >= least:
        return ""
    refused = "; ".join(f"{device}: {reason}" for device, reason in sorted(work.refused.items())) or "none"
    return (
        f"relay {work.order.device}, round {work.order.round}: {len(work.reports)} updates of at least {least}; "
        f"missing: {', '.join(work.open_devices()) or 'none'}; refused: {refused}"
    )


def unable(settings: RelaySettings, order: WorkOrder, hello: Hello, store: ArtifactStore) -> tuple[str, str]:
    """(code, reason) of the refusal of an order that a site cannot carry out in its devices' place; else both empty."""
    where = f"relay {order.device}, round {order.round}"
    try:
        if settings.policy is not None:
            settings.policy.check_order(order, store.has)
    except PolicyRefused as error:
        return error.code, str(error)
    if order.masking is not None:
        return "masking-missing", f"{where}: each device makes its own masks; let the site's devices join directly"
    if order.precision != "fp32":
        return (
            "unsupported-precision",
            f"{where}: updates of {order.precision} ordered, a relay sums fp32; set it in $.updates",
        )
    if not order.summable or order.report_labels:
        return "not-summable", (
            f"{where}: with this run's method or settings a mean of updates does not stand for them; let the site's "
            "devices join directly"
        )
    if hello.data_error:
        return "too-few-devices", f"{where}: {hello.data_error}"
    return "", ""
