"""A real Prometheus scrapes a service with the shipped configuration and answers the dashboard."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.processes import wait_until
from tests.service.test_service_life import run_service, score, write_config
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="no prometheus: apt-get install prometheus",
)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    with run_service(write_config(tmp_path, port, {}), port) as (_, address, _):
        yield address


@pytest.fixture
def config_path(service: str, tmp_path: Path) -> Path:
    """The shipped configuration with this service's address and token, scraped every second."""
    shipped = ROOT / "configs/serve/compose/prometheus.yml"
    config = yaml.safe_load(shipped.read_text(encoding="utf-8"))
    [job] = config["scrape_configs"]
    [job["static_configs"][0]["targets"][0]] = [service.removeprefix("http://")]
    job["authorization"]["credentials_file"] = str(tmp_path / "token")
    config["global"]["scrape_interval"] = "1s"
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


@pytest.fixture
def prometheus(config_path: Path, tmp_path: Path) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    options = {
        "config.file": config_path,
        "storage.tsdb.path": tmp_path / "metrics",
        "web.listen-address": address,
    }
    with open(tmp_path / "prometheus.log", "wb") as log:
        process = subprocess.Popen(
            ["prometheus", *(f"--{name}={value}" for name, value in options.items())], stderr=log
        )
    yield f"http://{address}"
    process.kill()
    process.wait()


def run_query(prometheus: str, expression: str) -> list[Any]:
    """Return the series that an expression finds now; none before Prometheus listens."""
    try:
        answer = httpx.get(f"{prometheus}/api/v1/query", params={"query": expression})
    except httpx.TransportError:
        return []
    assert answer.status_code in (200, 503), (expression, answer.text)
    return list(answer.json()["data"]["result"]) if answer.status_code == 200 else []


def test_prometheus_accepts_the_configuration(config_path: Path) -> None:
    command = ["promtool", "check", "config", str(config_path)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr


def test_prometheus_scrapes_a_service_and_answers_the_dashboard(
    service: str, prometheus: str
) -> None:
    score(service, "one")  # a rate begins with the second sample of a counter
    wait_until(lambda: run_query(prometheus, "autoj_judgements_total"))
    score(service, "another")
    wait_until(lambda: run_query(prometheus, "sum(rate(autoj_judgements_total[1m])) > 0"))
    [up] = run_query(prometheus, 'up{job="autoj"}')
    assert up["value"][1] == "1"

    board = json.loads((ROOT / "docs/run/grafana.json").read_text(encoding="utf-8"))
    panel_expressions = [
        target["expr"] for panel in board["panels"] for target in panel.get("targets", ())
    ]
    expressions = [
        expr.replace("$__rate_interval", "1m").replace("$job", ".*") for expr in panel_expressions
    ]
    answered_expressions = [
        expression for expression in expressions if run_query(prometheus, expression)
    ]
    # The others count what this service has not done yet: comparisons, groups, cached tokens.
    assert len(answered_expressions) >= 10, answered_expressions
