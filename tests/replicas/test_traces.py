"""Spans of a judge on Ray, sent by OTLP to a collector from each process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

JOB = """
from autoj_reward import Candidate, JudgeConfig, RewardConfig, RewardModel
from autoj_reward.client.client import JudgeClient
from autoj_reward.client.session import client_of
from autoj_reward.models.spec import judge_spec
from autoj_reward.replicas.cluster import Cluster
import asyncio

cluster = Cluster()
try:
    script, serve = {"ratings": {"good": 9}}, {"replicas": 1, "num_cpus": 0.1}
    spec = judge_spec(JudgeConfig(kind="fake", script=script, serve=serve, trace=True))
    client = client_of(spec, cluster.deploy_judge(spec), 8)
    print(asyncio.run(client.rate([Candidate("q", "good")]))[0].view("rating"), flush=True)
    input()
finally:
    cluster.close()
"""


@pytest.fixture
def collector() -> Iterator[tuple[str, Queue[Any]]]:
    """Listen as an OTLP collector does. Yields the address, and a queue of the spans received."""
    received: Queue[Any] = Queue()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["content-length"]))
            for resource in ExportTraceServiceRequest.FromString(sent).resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        received.put(span)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_replicas_judgement_is_in_the_trace_of_its_call(
    collector: tuple[str, Queue[Any]],
) -> None:
    address, received = collector
    # Uncompressed, and sent at once.
    sending = {"OTEL_EXPORTER_OTLP_COMPRESSION": "none", "OTEL_BSP_SCHEDULE_DELAY": "100"}
    job = subprocess.Popen(
        [sys.executable, "-c", JOB],
        env=os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": address} | sending,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    spans = {span.name: span for span in (received.get(timeout=600), received.get(timeout=600))}
    output, _ = job.communicate("\n")
    assert job.returncode == 0 and output.splitlines()[-1] == "9.0"
    call, judgement = spans["autoj.call"], spans["autoj.judgement"]
    assert judgement.trace_id == call.trace_id
    assert judgement.parent_span_id == call.span_id
    facts = {attribute.key: attribute.value for attribute in judgement.attributes}
    assert facts["autoj.outcome"].string_value == "ok"
