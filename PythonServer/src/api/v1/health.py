"""Health: is it alive, and can it serve."""

from typing import Any

from flask import Response, current_app
from flask_openapi import APIBlueprint, Tag
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from api.answers import NO_PROBLEMS, TEXT, NotReady, Well
from core.base.Main import Main

health_routes = APIBlueprint("health", __name__, abp_tags=[Tag(name="health")], abp_responses=NO_PROBLEMS)


def _main() -> Main:
    main: Main = current_app.extensions["runtime"].main
    return main


@health_routes.get("/livez", responses={200: Well})
def livez() -> dict[str, Any]:
    """200 while the process answers."""
    return {"status": "ok"}


@health_routes.get("/readyz", responses={200: Well, 503: NotReady})
def readyz() -> tuple[dict[str, Any], int]:
    """200 while the store takes writes and the server is not going down; else 503 and why."""
    reason = _main().why_not_ready()
    return ({"status": "ok"}, 200) if reason is None else ({"status": "unavailable", "reason": reason}, 503)


@health_routes.get("/metrics", responses={200: TEXT})
def metrics() -> Response:
    """Prometheus metrics."""
    registry = CollectorRegistry()
    registry.register(_Gauges(_main()))
    return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


class _Gauges(Collector):
    """Read at the scrape; nothing is counted on the way of a stop."""

    def __init__(self, main: Main) -> None:
        self._main = main

    def collect(self) -> list[GaugeMetricFamily]:
        """The gauges as they are now."""
        return [GaugeMetricFamily(name, text, value) for name, text, value in self._main.gauges()]
