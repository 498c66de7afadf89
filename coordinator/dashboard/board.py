"""What every open page shows of a run, kept once: the whole of it, and what changed from one look to the next.

A look reads the ledger and ``live.json``. It happens while a page is open, at most once a second, and no more often
than leaves a processor alone for most of the time.
"""

from __future__ import annotations

import gzip
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from coordinator.dashboard.fleet import DeviceView, view_of
from coordinator.history.history import History
from coordinator.history.live import LiveState, read_live
from coordinator.history.records import LedgerEvent, RoundRecord, Run, TrafficTotal
from edge.contracts.errors import ApportionError

EVERY_S = 1.0
REST = 5.0
"""After a look so many times as long is rested: a fifth of a processor at most, for thousands of devices."""

KEPT = 60
"""Changes that are kept for pages whose connection broke; a page that missed more reads the whole again."""

EVENTS = 300
"""Newest ledger events of a page that opens; earlier ones are asked for."""


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is different since the version before; parts that are not there did not change.

    Attributes:
        devices: those that changed, whole. gone: ids of those that are no longer there.
        rounds: those attempts that changed or are new. events: the new ones.
    """

    version: int
    run: Run | None = None
    is_running: bool | None = None
    deadline_left_s: float | None = None
    devices: tuple[DeviceView, ...] = ()
    gone: tuple[str, ...] = ()
    rounds: tuple[RoundRecord, ...] = ()
    events: tuple[LedgerEvent, ...] = ()
    traffic: tuple[TrafficTotal, ...] | None = None
    problem: str | None = None


class Whole(NamedTuple):
    """Everything at one version: JSON, and the same compressed."""

    version: int
    data: bytes
    compressed: bytes


class Board:
    """The run of ``history``, for any number of pages. Start it with :meth:`following`."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._version = 0
        self._run: Run | None = None
        self._is_running = False
        self._deadline_left_s = 0.0
        self._devices: dict[str, DeviceView] = {}
        self._rounds: dict[tuple[int, int], RoundRecord] = {}
        self._events: deque[LedgerEvent] = deque(maxlen=EVENTS)
        self._last_event = 0
        self._traffic: tuple[TrafficTotal, ...] = ()
        self._problem = ""
        self._changes: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self._seen: object = None
        self._whole: Whole | None = None
        self._watchers = 0
        self._woken = threading.Event()

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self._version

    def whole(self) -> Whole:
        """Everything, as JSON of a :class:`Change` with all its parts; made once for each version."""
        with self._lock:
            if self._whole is None or self._whole.version != self._version:
                data = self._encoded()
                self._whole = Whole(self._version, data, gzip.compress(data, 1, mtime=0))
            return self._whole

    def _encoded(self) -> bytes:
        """Called with the lock held."""
        return msgspec.json.encode(
            Change(
                version=self._version,
                run=self._run,
                is_running=self._is_running,
                deadline_left_s=self._deadline_left_s,
                devices=tuple(self._devices.values()),
                rounds=tuple(self._rounds.values()),
                events=tuple(self._events),
                traffic=self._traffic,
                problem=self._problem,
            )
        )

    def device(self, device: str) -> DeviceView | None:
        """One device as it is shown now."""
        with self._lock:
            return self._devices.get(device)

    def since(self, version: int) -> list[bytes] | None:
        """The changes after ``version``, each as JSON, in order; None: they are not kept, read the whole."""
        with self._lock:
            if version == self._version:
                return []
            kept = [(number, data) for number, data in self._changes if number > version]
            if version > self._version or not kept or kept[0][0] != version + 1:
                return None
            return [data for _, data in kept]

    @contextmanager
    def following(self) -> Iterator[None]:
        """Looks now, and again and again while the context and a page are open.

        Raises:
            LedgerError: the first look found no run that can be read.
        """
        self.look()
        self.whole()  # the first page need not wait for it
        ended = threading.Event()

        def follow() -> None:
            while not ended.is_set():
                self._woken.wait(EVERY_S)
                self._woken.clear()
                if ended.is_set() or not self._watchers:
                    continue
                began = time.monotonic()
                try:
                    self.look()
                except ApportionError as error:  # its server is away: what was shown stays, and says so
                    self._tell(str(error))
                took_s = time.monotonic() - began
                ended.wait(max(EVERY_S - took_s, REST * took_s))

        thread = threading.Thread(target=follow, name="board", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            self._woken.set()
            thread.join(5.0)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A page is open while the context is."""
        with self._lock:
            self._watchers += 1
        self._woken.set()
        try:
            yield
        finally:
            with self._lock:
                self._watchers -= 1

    @property
    def is_followed(self) -> bool:
        """Whether a page is open, so that what is kept here is never old."""
        return self._watchers > 0

    def look_soon(self) -> None:
        """Something was just asked of the run: its effect is to be seen at once."""
        self._woken.set()

    def look(self) -> None:
        """Reads what is new, and notes what changed."""
        with self._looking:
            self._look()

    def _look(self) -> None:
        live = None if self.history.folder is None else read_live(self.history.folder)
        is_running = live is not None and not live.is_stale(time.time())
        seen = (self.history.marker(), None if live is None else live.written_at, is_running)
        if seen == self._seen:
            return
        # Neither is shown, and a run file may hold a broker's password.
        run = msgspec.structs.replace(self.history.run(), config="", summary={})
        news = self.history.events(self._last_event) if self._version else self.history.latest_events(EVENTS)
        rounds = {(entry.round, entry.attempt): entry for entry in self.history.rounds(self._first_to_read(news))}
        current = max((entry.round + (entry.state == "committed") for entry in rounds.values()), default=0)
        devices = self._views(live if is_running else None, is_running, current)
        found: dict[str, Any] = {
            "run": run,
            "is_running": is_running,
            "deadline_left_s": live.deadline_left_s if live is not None and is_running else 0.0,
            "traffic": self.history.traffic(),
            "problem": "",
        }
        with self._lock:
            parts = {name: value for name, value in found.items() if value != getattr(self, f"_{name}")}
            changed = tuple(view for name, view in devices.items() if self._devices.get(name) != view)
            gone = tuple(name for name in self._devices if name not in devices)
            new_rounds = tuple(entry for key, entry in rounds.items() if self._rounds.get(key) != entry)
            for name, value in found.items():
                setattr(self, f"_{name}", value)
            self._devices = devices
            self._rounds.update(rounds)
            self._events.extend(news)
            self._last_event = news[-1].number if news else self._last_event
            if parts or changed or gone or new_rounds or news:
                self._note(
                    Change(
                        version=self._version + 1, devices=changed, gone=gone, rounds=new_rounds, events=news, **parts
                    )
                )
        self._seen = seen

    def _first_to_read(self, news: tuple[LedgerEvent, ...]) -> int:
        """The first round that may have changed: what is set aside or released by hand may be of any."""
        if not self._rounds or any(entry.action in ("update-quarantined", "update-released") for entry in news):
            return 0
        unsettled = self.history.first_unsettled_round()
        known = [entry.round for entry in self._rounds.values() if entry.state not in ("committed", "abandoned")]
        return min([unsettled, *known, max(key[0] for key in self._rounds)])

    def _views(self, live: LiveState | None, is_running: bool, current: int) -> dict[str, DeviceView]:
        records = {entry.device: entry for entry in self.history.devices(limit=1_000_000)}
        heard = {} if live is None else {entry.device: entry for entry in live.devices}
        names = sorted({*records, *heard})
        return {
            name: view_of(name, records.get(name), heard.get(name), is_running=is_running, current_round=current)
            for name in names
        }

    def _tell(self, problem: str) -> None:
        with self._lock:
            if problem != self._problem:
                self._problem = problem
                self._note(Change(version=self._version + 1, problem=problem))

    def _note(self, change: Change) -> None:
        """Called with the lock held."""
        self._version = change.version
        self._changes.append((change.version, msgspec.json.encode(change)))
