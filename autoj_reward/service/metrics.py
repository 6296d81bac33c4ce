"""Prometheus metrics of a reward service, with the health of its judge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from autoj_reward.conversation import Response
from autoj_reward.formats.protocols import PROTOCOLS
from autoj_reward.judge.health import BOUNDS, CHECK_EVERY, JudgeHealth
from autoj_reward.logs import LOG
from autoj_reward.questions.rank import Ranking
from autoj_reward.questions.tie_break import count_tied_pairs
from autoj_reward.types import (
    GROUP,
    PAIRWISE,
    SINGLE,
    Candidate,
    Comparison,
    GroupKey,
    Judgement,
    Outcome,
    Usage,
    group_key,
)

BUCKETS_S = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
"""Upper bounds of the histograms' buckets, in seconds."""
FIGURES = ("failure_rate", "forced_rate", "saturation", "length_correlation", "length_drift")
"""Metrics of the judge's health; see `JudgeHealth`."""


class Metrics:
    """Metrics of a service.

    Judgements are counted by outcome and kind (the protocol), and tokens by direction (in, cached,
    out). A tie is a pair of equal ratings within a group (see `group_key`) of one request.
    """

    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        ProcessCollector(registry=r)
        GCCollector(registry=r)
        self.health = JudgeHealth()
        # Finding a metric by its labels takes longer than counting.
        self._counter, self._route = cache(self._make_counter), cache(self._make_route_metrics)
        self._alarms: set[str] = set()
        self._unchecked = 0
        self._requests = Counter(
            "autoj_requests", "Requests answered.", ["route", "status"], registry=r
        )
        self._seconds = Histogram(
            "autoj_request_seconds",
            "Seconds from a request's first byte to its answer's last.",
            ["route"],
            buckets=BUCKETS_S,
            registry=r,
        )
        self.in_flight = Gauge("autoj_requests_in_flight", "Requests in flight.", registry=r)
        self._judgements = Counter(
            "autoj_judgements", "Judgements by outcome.", ["kind", "outcome"], registry=r
        )
        self._forced = Counter(
            "autoj_forced", "Judgements whose verdict had to be forced.", registry=r
        )
        self._flagged = Counter("autoj_flagged", "Judgements by flag.", ["flag"], registry=r)
        tokens = Counter("autoj_tokens", "Tokens of judgements.", ["direction"], registry=r)
        self._tokens = [tokens.labels(direction) for direction in ("in", "cached", "out")]
        self._inside = Histogram(
            "autoj_judgement_seconds",
            "Seconds of a judgement in its engine, without queueing.",
            buckets=BUCKETS_S,
            registry=r,
        )
        self._queued = Histogram(
            "autoj_judgement_queue_seconds",
            "Seconds that a judgement waited in its engine's queue.",
            buckets=BUCKETS_S,
            registry=r,
        )
        self._pairs = Counter("autoj_rated_pairs", "Pairs rated within one group.", registry=r)
        self._ties = Counter("autoj_tied_pairs", "Rated pairs with equal ratings.", registry=r)
        self._comparisons = Counter(
            "autoj_comparisons", "Comparisons by verdict.", ["verdict"], registry=r
        )
        self._members = Counter(
            "autoj_group_members",
            "Responses sent one by one to be judged in a group, by how they were answered.",
            ["answer"],
            registry=r,
        )
        self._figures = Gauge(
            "autoj_judge_health", "Judge health over the last judgements.", ["figure"], registry=r
        )
        self._alarm = Gauge(
            "autoj_judge_alarm", "1 while a health metric is out of bounds.", ["figure"], registry=r
        )
        for name in FIGURES:
            self._figures.labels(name).set(math.nan)
        for name in BOUNDS:
            self._alarm.labels(name).set(0)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request and its duration."""
        requests, duration = self._route(route, status)
        requests.inc()
        duration.observe(seconds)

    def count_judgements(
        self, judgements: Iterable[tuple[Judgement, Sequence[Response]]], protocol: str = SINGLE
    ) -> None:
        """Count judgements, and log judge health alarms when they begin and end.

        judgements: each with the responses that it judges. protocol: their protocol.
        """
        for judgement, responses in judgements:
            # Only known protocols become labels: a caller's own names would grow the metrics.
            kind = protocol if protocol in PROTOCOLS else "other"
            self._counter(kind, judgement.outcome).inc()
            if judgement.forced:
                self._forced.inc()
            for flag in judgement.flags:
                self._flagged.labels(flag).inc()
            self._count_usage(judgement.usage)
            self.health.observe(judgement, sum(len(response.text) for response in responses))
            self._unchecked += 1
        if self._unchecked >= CHECK_EVERY:
            self._check_health()

    def count_ratings(
        self, candidates: Sequence[Candidate], judgements: Sequence[Judgement]
    ) -> None:
        """Count the rated pairs and the ties within each group."""
        groups: dict[GroupKey, list[float]] = {}
        for candidate, judgement in zip(candidates, judgements, strict=True):
            if judgement.rating is not None:
                groups.setdefault(group_key(candidate), []).append(judgement.rating)
        for ratings in groups.values():
            self._pairs.inc(math.comb(len(ratings), 2))
            self._ties.inc(count_tied_pairs(ratings))

    def count_comparisons(self, comparisons: Sequence[Comparison]) -> None:
        """Count comparisons by verdict."""
        for comparison in comparisons:
            self._comparisons.labels(comparison.verdict.value).inc()

    def count_ranking(self, ranking: Ranking, responses: Sequence[Response]) -> None:
        """Count the judgements behind a ranking of these responses."""
        protocol = PAIRWISE if ranking.matches else GROUP
        self.count_judgements(
            ((judgement, responses) for judgement in ranking.judgements), protocol
        )

    def count_member(self, answer: str) -> None:
        """Count a response that was sent alone to be judged in a group.

        answer: `complete` or `partial` for its group, `late`, `abstained`, or `refused` if it does
        not fit its group.
        """
        self._members.labels(answer).inc()

    def text(self) -> bytes:
        """Return the `/metrics` page in Prometheus' text format."""
        self._check_health()
        return generate_latest(self.registry)

    def numbers(self) -> dict[str, float]:
        """Return what `/metrics` has, without the histograms' buckets, by name and label values."""
        self._check_health()
        return {
            "/".join([sample.name, *(value.strip("/") for value in sample.labels.values())]): (
                sample.value
            )
            for family in self.registry.collect()
            for sample in family.samples
            if not sample.name.endswith(("_bucket", "_created"))
        }

    def _make_counter(self, protocol: str, outcome: Outcome) -> Counter:
        # Prometheus' rate() misses the event with which a series begins.
        for any_outcome in Outcome:
            self._judgements.labels(protocol, any_outcome.value)
        return self._judgements.labels(protocol, outcome.value)

    def _make_route_metrics(self, route: str, status: int) -> tuple[Counter, Histogram]:
        return self._requests.labels(route, str(status)), self._seconds.labels(route)

    def _count_usage(self, usage: Usage) -> None:
        for counter, tokens in zip(
            self._tokens, (usage.tokens_in, usage.tokens_cached, usage.tokens_out), strict=True
        ):
            counter.inc(tokens)
        self._inside.observe(usage.latency_s)
        self._queued.observe(usage.queued_s)

    def _check_health(self) -> None:
        self._unchecked = 0
        figures, alarms = self.health.figures(), set(self.health.alarms())
        for name in FIGURES:
            self._figures.labels(name).set(figures[name])
        for name in BOUNDS:
            self._alarm.labels(name).set(name in alarms)
        for name in sorted(alarms ^ self._alarms):
            value = None if math.isnan(figures[name]) else figures[name]
            facts = {"figure": name, "value": value, "bound": BOUNDS[name]}
            if name in alarms:
                LOG.warning("judge health alarm", extra={"facts": facts})
            else:
                LOG.info("judge health alarm over", extra={"facts": facts})
        self._alarms = alarms
