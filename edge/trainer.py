"""The trainer: a child process that holds NumPy, one runtime, the local data and one artifact.

:mod:`edge.commands.trainer_start` starts it. It reads requests from stdin and answers on stdout until its supervisor
closes the pipe or dies. Ordinary failures are answers; a native crash or a kernel kill ends this process only, and the
supervisor reports it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from edge.contracts.errors import ApportionError, ArtifactCorrupt, MessageRejected
from edge.contracts.manifest import ArtifactManifest
from edge.runtimes import runtime, traits_of
from edge.runtimes.base import Runtime, Session
from edge.runtimes.weights_file import WeightsFile
from edge.supervisor.trainer_messages import (
    Describe,
    Described,
    Failed,
    Progress,
    Ready,
    Reply,
    Request,
    Storing,
    Train,
    Trained,
    read_request,
)
from edge.system import out_of_memory
from edge.system.atomic_files import FULL
from edge.system.energy import EnergyMeter
from edge.system.meter import is_torch_loaded, peak_rss_bytes, rss_bytes
from edge.system.pipe_frames import write_frame
from edge.training.assignment_run import AssignmentRun, carry_out
from edge.training.batches import Examples
from edge.training.control_variates import CorrectedWeights, NextVariates
from edge.training.local_data import LocalData, read_local_data
from edge.training.self_test import check_self_test
from edge.training.sources.language import RunText, Untokenised, run_text
from edge.training.steps import uploaded
from edge.training.update_file import write_update

if TYPE_CHECKING:
    import numpy as np

    from edge.training.feature_cache.record_file import RecordFile

_PR_SET_PDEATHSIG = 1
WRITE_AGAIN_S = 2.0
"""Between tries to write an update to a disk that is full."""


class Trainer:
    """Answers requests with replies written to ``out``; keeps the data and the session for the next request."""

    def __init__(self, chosen: Runtime, out: BinaryIO) -> None:
        self._runtime = chosen
        self._max_threads = traits_of(chosen.NAME).max_threads
        self._out = out
        self._data: tuple[tuple[str, RunText | None], LocalData] | None = None
        self._session: tuple[tuple[str, int], ArtifactManifest, Session] | None = None
        self._idle_bytes = 0

    def ready(self) -> None:
        """Tell that the runtime is loaded."""
        version = self._runtime.version()  # some runtimes load their library only now
        self._idle_bytes = rss_bytes()
        threads, densities = self._max_threads, dict(getattr(self._runtime, "sparse_below", dict)())
        native = str(getattr(self._runtime, "native_trainer", str)())
        self._send(Ready(self._runtime.NAME, version, self._idle_bytes, threads, densities, native))

    def answer(self, request: Request) -> None:
        """Carry ``request`` out and send what came of it."""
        if isinstance(request, Describe):
            self._describe(request)
            return
        identity = request.order.assignment_id
        try:
            self._send(self._train(request))
        except ApportionError as error:
            code = out_of_memory.CODE if out_of_memory.is_out_of_memory(error) else error.code
            self._send(Failed(identity, code, str(error), peak_rss_bytes()))
        except Exception as error:  # the supervisor must hear of it, whatever it is
            is_memory = out_of_memory.is_out_of_memory(error)
            code = out_of_memory.CODE if is_memory else "trainer-failed"
            self._send(Failed(identity, code, f"{type(error).__name__}: {error}", peak_rss_bytes()))
            if not is_memory:
                raise
            self._session = None

    def _describe(self, request: Describe) -> None:
        try:
            count, code, reason = self._count(request), "", ""
        except ApportionError as error:
            count, code, reason = 0, error.code, str(error)
        self._idle_bytes = max(self._idle_bytes, rss_bytes())
        self._send(Described(count, self._idle_bytes, code, reason))

    def _count(self, request: Describe) -> int:
        try:
            return len(self._local_data(request.data, request.kept))
        except Untokenised as texts:
            return texts.documents

    def _train(self, request: Train) -> Trained:
        order, meter = request.order, EnergyMeter()
        manifest, session = self._load(request)
        data = self._local_data(request.data, request.kept, run_text(request.tokenizer, manifest))
        examples = Examples(data, manifest)
        if request.tokenizer or len(examples) != len(data):
            # The coordinator was told of documents, or of other windows.
            self._send(Described(len(examples), self._idle_bytes))
        constants = Path(request.constants) if request.constants else None
        begun = _starting_weights(request, constants)
        session.load_state(begun)
        last_sent = time.monotonic()

        def progress(step: int, total: int, loss: float) -> None:
            nonlocal last_sent
            if step == 1 or time.monotonic() - last_sent >= request.progress_s:
                last_sent = time.monotonic()
                self._send(Progress(order.assignment_id, step, total, loss))

        with self._features(request, manifest, session, examples) as kept:
            run = carry_out(session, manifest, order, examples, progress=progress, kept_features=kept)
        outcome = run.outcome
        variates: Mapping[str, np.ndarray] = {}
        if request.new_variates and isinstance(begun, CorrectedWeights):
            variates = NextVariates(begun, session, steps=outcome.steps, lr=order.hyper["lr"])
        digest, size, encoded_size = self._written(request, manifest, session, run, variates)
        spent = meter.spent()
        return Trained(
            assignment_id=order.assignment_id,
            digest=digest,
            size=size,
            encoded_size=encoded_size,
            num_examples=run.num_examples,
            steps=outcome.steps,
            loss=outcome.loss,
            metrics=outcome.metrics,
            step_ms_p50=outcome.step_ms_p50,
            step_ms_p95=outcome.step_ms_p95,
            step_cpu_ms_p50=outcome.step_cpu_ms_p50,
            peak_bytes=peak_rss_bytes(),
            idle_bytes=self._idle_bytes,
            torch_loaded=is_torch_loaded(),
            threads=min(request.threads, self._max_threads or request.threads),
            labels=run.labels,
            evaluation=run.evaluation,
            cpu_s=spent.cpu_s,
            joules=spent.joules,
        )

    @contextlib.contextmanager
    def _features(
        self, request: Train, manifest: ArtifactManifest, session: Session, examples: Examples
    ) -> Iterator[RecordFile | None]:
        """What is kept of frozen blocks' features while ``request`` is carried out."""
        if not manifest.specs("features") or not request.features:
            yield None
            return
        from edge.training.feature_cache.artifact import features_key, kept_bytes
        from edge.training.feature_cache.folder import open_records
        from edge.training.feature_cache.source import frozen_bytes

        runtime = f"{self._runtime.NAME} {self._runtime.version()}"
        key = features_key(manifest, request.order, partial(frozen_bytes, session), runtime)
        records = open_records(
            Path(request.features),
            key,
            kept_bytes(manifest),
            examples=examples.in_data,
            limit_bytes=request.features_bytes,
            key_file=Path(request.features_key) if request.features_key else None,
        )
        try:
            yield records
        finally:
            if records is not None:
                records.close()

    def _written(
        self,
        request: Train,
        manifest: ArtifactManifest,
        session: Session,
        run: AssignmentRun,
        variates: Mapping[str, np.ndarray],
    ) -> tuple[str, int, int]:
        """As :meth:`_write`, when the disk takes it: a training is not lost for that."""
        while True:
            try:
                return self._write(request, manifest, session, run, variates)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                beside = (request.new_left_over, request.new_personal, request.new_tuned, request.new_variates)
                for path in filter(None, (request.update, *beside)):
                    Path(path).unlink(missing_ok=True)  # what fitted is of no use, and somebody else may have room
                reason = f"the update waits in memory for room on the disk: {error}"
                self._send(Storing(request.order.assignment_id, reason))
                time.sleep(WRITE_AGAIN_S)

    def _write(
        self,
        request: Train,
        manifest: ArtifactManifest,
        session: Session,
        run: AssignmentRun,
        variates: Mapping[str, np.ndarray],
    ) -> tuple[str, int, int]:
        """As :func:`edge.training.update_file.write_update`, of the session's values, in the order's precision."""
        order, path = request.order, Path(request.update)
        if request.new_personal:
            write_update(Path(request.new_personal), {name: session.read(name) for name in order.own_layers}, "raw")
        if request.new_tuned and (rule := order.held_out_share) and run.evaluation and run.evaluation.kept:
            write_update(Path(request.new_tuned), {name: session.read(name) for name in rule.tuned}, "raw")
        if request.new_variates:
            write_update(Path(request.new_variates), variates, "raw")
        if order.masking is not None and request.masks is not None:
            from edge.masking.numbers import masked_update

            names, received = order.upload, WeightsFile(Path(request.weights), where=f"weights of round {order.round}")
            trained = partial(uploaded, session)
            masked = masked_update(
                names, trained, received, order.masking, request.masks, num_examples=run.num_examples
            )
            return write_update(path, masked, order.encoding)
        if order.precision == "fp32":
            return write_update(path, {name: uploaded(session, name) for name in order.upload}, order.encoding)
        from edge.training.coded_update import CodedUpdate, LeftOver

        where, before = f"weights of round {order.round}", Path(request.left_over)
        received = WeightsFile(Path(request.weights), where=where)
        left_over: Mapping[str, np.ndarray] = {}
        if request.new_left_over and before.is_file():
            with contextlib.suppress(ArtifactCorrupt):  # damaged: what it held is lost, nothing else
                left_over = WeightsFile(before, where="what rounding left over")
        update = CodedUpdate(order, manifest, lambda name: uploaded(session, name), received, left_over)
        if request.new_left_over:
            write_update(Path(request.new_left_over), LeftOver(update), "raw")
        return write_update(path, update, order.encoding)

    def _load(self, request: Train) -> tuple[ArtifactManifest, Session]:
        key = (request.order.artifact.digest, request.threads)
        if self._session is None or self._session[0] != key:
            self._session = None
            gc.collect()
            manifest = ArtifactManifest.from_bytes(Path(request.manifest).read_bytes())
            if manifest.runtime != self._runtime.NAME:
                raise MessageRejected(f"artifact is for runtime '{manifest.runtime}', this is '{self._runtime.NAME}'")
            files = {name: Path(path) for name, path in request.files.items()}
            session = self._runtime.load(manifest, files, threads=request.threads)
            if request.self_test:
                check_self_test(session, manifest, folder=Path(request.manifest).parent)
            self._session = key, manifest, session
        return self._session[1], self._session[2]

    def _local_data(self, source: str, kept: str, text: RunText | None = None) -> LocalData:
        if self._data is None or self._data[0] != (source, text):
            self._data = (source, text), read_local_data(source, Path(kept) if kept else None, text)
        return self._data[1]

    def _send(self, reply: Reply) -> None:
        write_frame(self._out, reply)


def _starting_weights(request: Train, constants: Path | None) -> WeightsFile:
    """What an order starts from: the received weights, and in their place the layers that the device keeps for itself;
    beside them what its control variates correct gradients by.

    Layers and variates whose file is damaged or gone are lost, and the device begins with the received layers, and with
    variates of zero.
    """
    path, where = Path(request.weights), f"weights of round {request.order.round}"
    if request.order.own_layers and request.personal:
        with contextlib.suppress(ArtifactCorrupt, OSError):
            own = request.order.own_layers, Path(request.personal)
            return WeightsFile(path, where=where, constants=constants, own=own)
    if request.order.keeps_variates:
        if request.variates:
            with contextlib.suppress(ArtifactCorrupt, OSError):
                return CorrectedWeights(path, where=where, constants=constants, own=Path(request.variates))
        return CorrectedWeights(path, where=where, constants=constants)
    return WeightsFile(path, where=where, constants=constants)


def follow_parent(parent: int) -> None:
    """Be killed when process ``parent`` dies (Linux); elsewhere the closed pipe has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def read_requests(stream: BinaryIO, requests: queue.SimpleQueue[Request]) -> None:
    """Put requests into the queue; end the process when the supervisor has closed the pipe, even in mid-training."""
    while (request := read_request(stream)) is not None:
        requests.put(request)
    os._exit(0)


def main(arguments: list[str]) -> int:
    """Serve the supervisor until it is gone; ``arguments`` are the runtime's name and the supervisor's process id."""
    name, parent = arguments
    follow_parent(int(parent))
    # Interrupts from a terminal reach the whole process group; the supervisor decides what they mean.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Native code may print to stdout: keep the pipe to ourselves and give everybody else stderr.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    trainer = Trainer(runtime(name), out)
    trainer.ready()
    requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
    threading.Thread(target=read_requests, args=(sys.stdin.buffer, requests), daemon=True).start()
    while True:
        trainer.answer(requests.get())
