"""OpenTelemetry: a trace of the run, run > round > its parts > assignments, sent by OTLP over HTTP.

Where to is said by the standard variables (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_EXPORTER_OTLP_HEADERS``, ...). Spans
are made when a round is committed, with the times at which their parts began and ended.
"""

from __future__ import annotations

import logging
import os

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

from coordinator.tracking.events import RoundCommitted, RunEnded, RunStarted, Span
from coordinator.tracking.tracker import Place, Tracker

SERVICE = "OTEL_SERVICE_NAME"
MOST_SPANS = 512
"""In one request."""


class _Ended(SpanProcessor):
    """Keeps the spans that ended until they are sent: the tracker has a thread of its own and needs no other."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Keep it."""
        self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        """Those since the last call."""
        taken, self._spans = self._spans, []
        return taken


class OpenTelemetry(Tracker):
    """A tracer provider of its own, never the process's.

    Args:
        exporter: in place of OTLP.
    """

    def __init__(self, place: Place, exporter: SpanExporter | None = None) -> None:
        super().__init__(place)
        service = os.environ.get(SERVICE) or place.experiment
        self._provider = TracerProvider(resource=Resource.create({"service.name": service}), shutdown_on_exit=False)
        self._ended = _Ended()
        self._provider.add_span_processor(self._ended)
        self._exporter = exporter or OTLPSpanExporter()
        # Its own lines about every failed try; that it fails is told once, by whoever called.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._tracer = self._provider.get_tracer("apportion")
        self._run: trace.Span | None = None

    def run_started(self, event: RunStarted) -> None:
        """A span for this process; those after a resumption are inside the first one's."""
        before = _context(self.place.remembered)
        self._run = self._tracer.start_span(
            "run",
            context=None if before is None else trace.set_span_in_context(NonRecordingSpan(before)),
            start_time=_ns(event.at_s),
            attributes={
                "apportion.federation": event.federation,
                "apportion.run": self.place.name,
                "apportion.method": event.method,
                "apportion.model": event.model,
                "apportion.rounds_done": event.done,
            },
        )
        if before is None:
            made = self._run.get_span_context()
            self.place.remember(f"{made.trace_id:032x}-{made.span_id:016x}")

    def round_committed(self, event: RoundCommitted) -> None:
        """Its spans; none of a round that an earlier process committed."""
        assert self._run is not None
        made: dict[str, trace.Span] = {"": self._run}
        for span in event.spans:
            parent = made.get(span.inside, made.get("round", self._run))
            made[span.name] = self._span(span, parent)
        self._send()

    def run_ended(self, event: RunEnded) -> None:
        """The end of the run's span, and what is left is sent."""
        if self._run is not None:
            if event.outcome != "finished":
                self._run.set_status(Status(StatusCode.ERROR, event.reason))
            self._run.end(end_time=_ns(event.at_s))
        self._send()

    def close(self) -> None:
        """Stop sending."""
        self._exporter.shutdown()
        self._provider.shutdown()

    def _send(self) -> None:
        spans = self._ended.take()
        for first in range(0, len(spans), MOST_SPANS):
            if self._exporter.export(spans[first : first + MOST_SPANS]) is not SpanExportResult.SUCCESS:
                raise ConnectionError("spans were not taken; see OTEL_EXPORTER_OTLP_ENDPOINT")

    def _span(self, span: Span, parent: trace.Span) -> trace.Span:
        attributes = {f"apportion.{key}": value for key, value in span.attributes.items()}
        made = self._tracer.start_span(
            span.name,
            context=trace.set_span_in_context(parent),
            start_time=_ns(span.began_s),
            attributes=attributes,
        )
        made.end(end_time=_ns(span.ended_s))
        return made


def _context(remembered: str) -> SpanContext | None:
    trace_id, _, span_id = remembered.partition("-")
    try:
        return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(1))
    except ValueError:
        return None


def _ns(at_s: float) -> int:
    return round(at_s * 1e9)
