"""Bugs that the harness has to find, put into a coordinator on purpose: what is never found is not looked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from coordinator.ledger.updates import Updates
from coordinator.methods.fedavg import FedAvg
from coordinator.rounds import aggregation as rounds
from coordinator.submodels.values import State


def _acknowledge_unwritten() -> None:
    """The first update is acknowledged and not written."""
    write, calls = Updates.record, iter([True])

    def record(updates: Updates, *arguments: Any, **values: Any) -> bool:
        return next(calls, False) or write(updates, *arguments, **values)

    Updates.record = record  # type: ignore[method-assign]


def _sum_one_twice() -> None:
    """The first update of every round is summed twice."""
    updates_of = rounds.updates_of

    def twice(*arguments: Any) -> Iterator[Any]:
        for index, update in enumerate(updates_of(*arguments)):
            yield update
            if index == 0:
                yield update

    rounds.updates_of = twice


def _leave_one_out() -> None:
    """The last update of every round is not summed."""
    updates_of = rounds.updates_of

    def fewer(*arguments: Any) -> Iterator[Any]:
        yield from list(updates_of(*arguments))[:-1]

    rounds.updates_of = fewer


def _change_one_bit() -> None:
    """One value of every new model is the next larger one."""
    refresh = FedAvg.refresh

    def changed(method: FedAvg, state: State) -> State:
        state = refresh(method, state)
        tensors = {name: np.array(value) for name, value in state.tensors.items()}
        first = tensors[sorted(tensors)[0]].reshape(-1)
        first[0] = np.nextafter(first[0], np.inf, dtype=first.dtype)
        return replace(state, tensors=tensors)

    FedAvg.refresh = changed  # type: ignore[method-assign]


def _name_nobody() -> None:
    """An update is rejected, and neither a row nor a line says why."""
    from coordinator.messaging.update_book import LedgerBook
    from edge.serving.uploads import UploadHandler

    reject, refuse = LedgerBook.reject, UploadHandler._reject

    def silently(book: LedgerBook, entry: Any, error: Any) -> None:
        reject(book, entry, type(error)(""))

    def without_a_word(handler: Any, entry: Any, error: Any) -> None:
        handler._say = lambda line: None
        refuse(handler, entry, error)

    LedgerBook.reject = silently  # type: ignore[method-assign]
    UploadHandler._reject = without_a_word  # type: ignore[method-assign]


def _reject_an_honest_device() -> None:
    """The first update of device-00 is rejected, whatever is in it."""
    from coordinator.messaging.update_book import LedgerBook
    from edge.contracts.errors import UpdateRejected

    check = LedgerBook.check

    def too_strict(book: LedgerBook, entry: Any, digest: str, where: str) -> None:
        if entry.device == "device-00":
            raise UpdateRejected(f"{where}: planted")
        check(book, entry, digest, where)

    LedgerBook.check = too_strict  # type: ignore[method-assign]


def _screen_nobody() -> None:
    """Whatever was reported is summed."""
    from coordinator.rounds.stages import screening

    screening.screened = lambda ledger, recorded, *arguments, **values: list(recorded)


PLANTED: dict[str, Callable[[], None]] = {
    "acknowledge-unwritten": _acknowledge_unwritten,
    "sum-one-twice": _sum_one_twice,
    "leave-one-out": _leave_one_out,
    "change-one-bit": _change_one_bit,
    "name-nobody": _name_nobody,
    "reject-an-honest-device": _reject_an_honest_device,
    "screen-nobody": _screen_nobody,
}
"""By name; each is put into every coordinator of a run."""

BESIDE: dict[str, str] = {
    "name-nobody": "extreme",
    "reject-an-honest-device": "extreme",
    "screen-nobody": "colluding",
}
"""Bugs that show beside a liar only: which kind of liar."""
