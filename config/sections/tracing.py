"""The section of a spec about traces of requests."""

from marina.config.sections.section import Section, Share, Url


class Tracing(Section):
    """Spans of requests and batches, sent to a collector of OpenTelemetry; without this section none are made, and
    `traceparent` passes unchanged. It needs the extra `tracing`."""

    endpoint: Url
    """The collector, which takes OTLP over HTTP, such as `http://collector.observability:4318`; `/v1/traces` is added.
    Headers that it wants are in the server's variable `OTEL_EXPORTER_OTLP_HEADERS`, never here: a Secret with that key
    in `kubernetes.pod.env_from`. Read by the supervisor; lands in the NetworkPolicy and the image."""
    sample: Share = 0.01
    """The share of requests that are traced, of those without a `traceparent`; with one, its sampled bit decides. At
    most 500 a second are traced. Lands in the Java command."""

    @property
    def traces_url(self) -> str:
        """Where the spans are sent."""
        path = "/v1/traces"
        return self.endpoint.rstrip("/").removesuffix(path) + path
