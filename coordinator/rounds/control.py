"""What people ask of a run that is under way: pause, drain, stop. It is in the ledger; any process may ask.

The coordinator looks at it between rounds, and at least every second while devices work. Whatever is asked, the ledger
stays resumable: stopping is no state of a run, it is the absence of a process.
"""

from __future__ import annotations

from typing import Literal

from coordinator.ledger.ledger import Ledger
from coordinator.rounds.federation import Federation
from edge.contracts.errors import ApportionError, LedgerError
from edge.contracts.messages import Error

Request = Literal["", "pause", "drain", "stop"]
CONTROL = "control"
"""Name of the request in the ledger."""

LOOK_S = 1.0


class RunStopped(ApportionError):
    """Somebody asked the run to stop, and it did; it goes on when it is resumed.

    The exit status is that of a job to be tried again later (EX_TEMPFAIL of sysexits.h): neither done nor broken.
    """

    code = "run-stopped"
    exit_code = 75


def ask(ledger: Ledger, asked: Request) -> None:
    """Leave a request for whoever runs the federation; the empty one takes back what was asked before.

    Raises:
        LedgerError: the run is over.
    """
    if ledger.federation().state == "finished":
        raise LedgerError(f"the run is finished; there is nothing to {asked or 'continue'}")
    ledger.requests.put(CONTROL, asked)


def obey_between_rounds(federation: Federation) -> None:
    """Wait while the run is to pause; nothing when nobody asked for anything.

    Raises:
        RunStopped: it is to drain, and no round is open, or to stop.
    """
    said = False
    while asked := _request(federation):
        if asked != "pause":
            _stop(federation, asked)
        if not said:
            federation.progress.say("paused: no further round begins until `apportion continue`; devices wait")
            federation.progress.record("paused")
            said = True
        federation.devices.wait(LOOK_S)
    if said:
        federation.progress.say("the run goes on")
        federation.progress.record("continued")


def obey_within_round(federation: Federation) -> None:
    """Nothing, unless the run is to stop at once.

    Raises:
        RunStopped: it is.
    """
    if _request(federation) == "stop":
        _stop(federation, "stop")


def _request(federation: Federation) -> str:
    return federation.ledger.requests.find(CONTROL) or ""


def _stop(federation: Federation, asked: str) -> None:
    told = Error("run-stopped", "the coordinator stops on request; keep your work, it is asked for when it is back")
    here = federation.devices.present(usable_only=False)
    for hello in here:
        federation.devices.tell(hello.device, told)
    last = federation.ledger.rounds.last_committed()
    done = 0 if last is None else last.round + 1
    federation.progress.record("stopped", wish=asked, rounds=done)
    raise RunStopped(
        f"stopped as asked ({asked}): {done} of {federation.config.federation.rounds} rounds are committed, "
        f"{len(here)} devices were told"
    )
