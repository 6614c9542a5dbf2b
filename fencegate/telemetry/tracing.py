"""What the rest says to a tracer: spans, and the headers that carry a trace on. No library is named or imported here.

Who traces is handed a :class:`Tracing`; who does not, never comes by here. ``telemetry/otel.py`` is the one that ships.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Literal, Protocol

Attributes = Mapping[str, str | int | float | bool]
Kind = Literal["server", "client", "internal"]
Lines = Iterable[tuple[bytes, bytes]]
"""Header lines, as they came."""


class Span(Protocol):
    """Something that takes time. Nothing of it raises."""

    @property
    def recording(self) -> bool:
        """Whether anybody will see it: of one that was not sampled, nothing has to be found out."""
        ...

    def rename(self, name: str) -> None: ...

    def put(self, attributes: Attributes) -> None: ...

    def fail(self, kind: str) -> None:
        """It went wrong. ``kind``: one word out of few, for ``error.type``."""
        ...

    def end(self) -> None: ...

    def current(self) -> AbstractContextManager[object]:
        """While it is entered, spans that begin are children of this one. It does not end the span."""
        ...


class _Unseen:
    recording: Final = False

    def rename(self, name: str) -> None: ...

    def put(self, attributes: Attributes) -> None: ...

    def fail(self, kind: str) -> None: ...

    def end(self) -> None: ...

    def current(self) -> AbstractContextManager[object]:
        return nullcontext()


UNSEEN: Final[Span] = _Unseen()
"""In the place of a span that nobody would see: the one around it stays the current one."""


class Tracing(Protocol):
    """Where spans come from. Nothing of it raises."""

    def begin(self, name: str, kind: Kind, attributes: Attributes, *, caller: Lines | None = None) -> Span:
        """A span that began now.

        A child of the current one; or, with ``caller``, of the span that these header lines name (W3C Trace
        Context), and of none where they name none.
        """
        ...

    @property
    def recording(self) -> bool:
        """Whether the current span will be seen. Below one that will not, none has to begin: see :data:`UNSEEN`."""
        ...

    def outgoing(self) -> list[tuple[str, str]]:
        """The header lines that make the next one's spans children of the current span."""
        ...
