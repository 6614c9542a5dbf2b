"""The table ``[otel]``: whether spans are sent, and where to."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from fencegate.config.values import Table, checked, split_url

_COLLECTOR: Final = "expected an http:// or https:// URL, such as http://collector:4318"


def _collector(text: str) -> str:
    parts = split_url(text, _COLLECTOR)
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.query
        or parts.fragment
        or not text.isascii()
    ):
        raise ValueError(_COLLECTOR)
    if "@" in parts.netloc:
        raise ValueError("expected a URL without a password: headers go into OTEL_EXPORTER_OTLP_HEADERS")
    return text


class OtelSettings(Table):
    """Spans for an OpenTelemetry collector, over OTLP/HTTP. All else of it is set by the standard ``OTEL_*`` variables.

    ``enabled``: by default where ``endpoint`` is set. ``endpoint`` is without ``/v1/traces``. ``sample_ratio``: of the
    requests whose caller does not say whether they are.
    """

    enabled: Annotated[bool, Field(description="true or false")] | None = None
    endpoint: (
        Annotated[str, checked(_collector), Field(description="a collector's URL, such as http://collector:4318")]
        | None
    ) = None
    service_name: (
        Annotated[str, Field(min_length=1, max_length=255, description="a name, 1 to 255 characters")] | None
    ) = None
    sample_ratio: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, description="a number of 0 to 1")] | None = (
        None
    )

    @property
    def on(self) -> bool:
        return self.endpoint is not None if self.enabled is None else self.enabled
