"""OpenTelemetry spans of the way from a caller to the judgement, in processes that trace.

Spans hold counts, outcomes, tokens and seconds, never a text of a caller or a judge. A process that
does not trace imports nothing for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from autoj_reward.errors import from_extras

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

Note = Callable[[Mapping[str, Any]], object]
"""Function that adds attributes to a span: strings, numbers and truth values by name."""
_OFF: AbstractContextManager[Note] = nullcontext(lambda attributes: None)
_tracer: Tracer | None = None


def start_tracing() -> None:
    """Record spans in this process from now on.

    They go to the tracer provider that the process has set. Without one they go by OTLP over HTTP
    to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names, by default http://localhost:4318, with
    OpenTelemetry's other variables as usual. Raises ConfigError if OpenTelemetry is not installed.
    """
    global _tracer
    if _tracer is not None:
        return
    with from_extras():
        from opentelemetry import trace

        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            name = os.environ.get("OTEL_SERVICE_NAME", "autoj-reward")
            provider = TracerProvider(resource=Resource.create({"service.name": name}))
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
            trace.set_tracer_provider(provider)
    _tracer = trace.get_tracer("autoj_reward")


def span(
    name: str,
    attributes: Mapping[str, Any] | None = None,
    *,
    kind: Literal["INTERNAL", "CLIENT", "SERVER"] = "INTERNAL",
    caller: Mapping[str, str] | None = None,
) -> AbstractContextManager[Note]:
    """Return a context that is recorded as a span if this process traces.

    It yields a function that adds further attributes. caller: headers of the request that asked for
    the work; their `traceparent` names the parent. Without it the parent is the current span.
    """
    if _tracer is None:
        return _OFF
    return _record_span(_tracer, name, attributes, kind, caller or {})


@contextmanager
def _record_span(
    tracer: Tracer,
    name: str,
    attributes: Mapping[str, Any] | None,
    kind: str,
    caller: Mapping[str, str],
) -> Iterator[Note]:
    from opentelemetry.trace import SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    with tracer.start_as_current_span(
        name,
        TraceContextTextMapPropagator().extract(caller) if "traceparent" in caller else None,
        SpanKind[kind],
        attributes,
        # An exception's message may quote a text: only its type is recorded.
        record_exception=False,
        set_status_on_exception=False,
    ) as current_span:
        try:
            yield current_span.set_attributes
        except BaseException as error:
            current_span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise


def trace_headers() -> dict[str, str]:
    """Return the W3C `traceparent` and `tracestate` of the current span; {} if there is none."""
    headers: dict[str, str] = {}
    if _tracer is not None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        TraceContextTextMapPropagator().inject(headers)
    return headers
