"""A trainer in this process: what it writes is written here, so that a test's disk may fail under it."""

from __future__ import annotations

import io
import queue
import threading
from typing import Any

from edge.runtimes import runtime
from edge.supervisor.trainer_link import TrainerEnded, TrainerLink, TrainerSaid
from edge.supervisor.trainer_messages import Request, read_reply
from edge.trainer import Trainer


class _Said(io.RawIOBase):
    """Hands on every frame that is written to it."""

    def __init__(self, link: InlineTrainer) -> None:
        self._link, self._pending = link, b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._pending += bytes(data)
        return len(data)

    def flush(self) -> None:
        stream, self._pending = io.BytesIO(self._pending), b""
        while (reply := read_reply(stream)) is not None:
            self._link.say(TrainerSaid(reply))


class InlineTrainer(TrainerLink):
    """As its base, with a thread for a child."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def say(self, event: TrainerSaid | TrainerEnded) -> None:
        self._deliver(event)

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    def send(self, request: Request) -> None:
        if self._thread is None:
            self._requests = queue.SimpleQueue()
            self._thread = threading.Thread(target=self._work, args=(self._requests,), daemon=True)
            self._thread.start()
        self._requests.put(request)

    def end(self) -> None:
        thread, self._thread = self._thread, None
        self.artifact = ""
        if thread is not None:
            self._requests.put(None)

    kill = end

    def _work(self, requests: queue.SimpleQueue[Request | None]) -> None:
        trainer = Trainer(runtime(self._runtime), _Said(self))  # type: ignore[arg-type]
        trainer.ready()
        while (request := requests.get()) is not None:
            try:
                trainer.answer(request)
            except Exception as error:  # a real one ends with it
                self.say(TrainerEnded(f"{type(error).__name__}: {error}"))
