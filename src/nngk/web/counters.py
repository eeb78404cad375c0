"""What a server counts, in Prometheus' format."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from nngk.web.served import Snapshot


class Counters:
    """The counters of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self.requests = Counter("nngk_requests", "Requests that were answered.", labels, registry=self.registry)
        self.seconds = Histogram(
            "nngk_request_seconds", "Seconds until a request was answered.", ("route",), registry=self.registry
        )
        self.batches = Histogram(
            "nngk_batch_pictures",
            "Pictures in one pass of the network.",
            registry=self.registry,
            buckets=(1, 2, 4, 8, 16, 32, 64),
        )
        self.changes = Counter("nngk_changes", "Changes of the model that were made.", registry=self.registry)

    def watch(self, waiting: Callable[[], int], now: Callable[[], Snapshot]) -> None:
        """Let the registry ask how much is waiting and how large the model is whenever somebody looks."""
        for name, what, value in (
            ("nngk_waiting", "Pictures in the queue.", waiting),
            ("nngk_classes", "Classes of the model.", lambda: len(now().model.class_names)),
            ("nngk_centres", "Images behind the answers of the model.", lambda: now().model.images),
            ("nngk_model_version", "States of the model since the start.", lambda: now().version),
        ):
            Gauge(name, what, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """Return everything that was counted."""
        return generate_latest(self.registry)
