"""Observations as log lines: one line per fact, as text or as JSON, through the standard library's logging.

What happens on every request (an accepted write, a fence check, a renewal) is said at level DEBUG only.
Refusals are sampled per role and code: after ``SAMPLE`` lines in a second the rest are counted, and the
count comes with the next line. A value that a client sent can never break or fake a line.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO, cast

from fencegate import observations as seen
from fencegate.telemetry.labels import RoleLabels

Format = Literal["auto", "json", "text"]
Level = Literal["debug", "info", "warning", "error"]

SAMPLE: Final = 5
"""Refusals of one role and code that get a line of their own within one second."""

_LEVELS: Final[Mapping[type[seen.Observation], int]] = {
    seen.WriteAccepted: logging.DEBUG,
    seen.FenceChecked: logging.DEBUG,
    seen.WriteHeld: logging.DEBUG,
    seen.HoldEnded: logging.DEBUG,
    seen.HoldRefused: logging.DEBUG,
    seen.LeaseRenewed: logging.DEBUG,
    seen.FenceSeen: logging.DEBUG,
    seen.WouldRefuse: logging.WARNING,
    seen.WriteOutcomeUnknown: logging.WARNING,
    seen.LeadershipLost: logging.WARNING,
    seen.LeaseRenewalFailed: logging.WARNING,
    seen.ClaimWasRefused: logging.WARNING,
    seen.SourceUnavailable: logging.WARNING,
    seen.OrphanedMarkExpired: logging.WARNING,
    seen.PendingVoided: logging.WARNING,
    seen.TokensRebased: logging.WARNING,
    seen.NotEnforcing: logging.WARNING,
    seen.StoreWentDown: logging.ERROR,
    seen.StoreWentBack: logging.ERROR,
    seen.TokenRegressed: logging.ERROR,
    seen.StrangerLeads: logging.ERROR,
    seen.NodeNameShared: logging.ERROR,
    seen.WorkerEnded: logging.ERROR,
    seen.ReloadRefused: logging.ERROR,
    seen.CertificatesRefused: logging.ERROR,
    seen.CertificateExpiring: logging.WARNING,
}
_ORDERLY: Final = frozenset({"resigned", "shutdown", "handoff"})
_BARE: Final = re.compile(r"[A-Za-z0-9_./:@+-]+", re.ASCII)
_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_LONGEST: Final = 512

Fields = dict[str, object]


_NOBODY: Final = (0, "", "")


class Logs:
    """An ``Observer`` that writes lines. ``clock`` is monotonic seconds, for the sampling."""

    def __init__(
        self,
        families: tuple[str, ...] | list[str],
        *,
        logger: logging.Logger | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger or logging.getLogger("fencegate")
        self._roles = RoleLabels(families)
        self._clock = clock
        self._windows: dict[tuple[str, str, str], _Window] = {}
        self._leaders: dict[str, tuple[int, str, str]] = {}

    def hearer(self, kind: type[seen.Observation]) -> Callable[[seen.Observation], None] | None:
        """What writes the lines of this ``kind``; ``None`` where the level of today lets none of them through."""
        silent = _LEVELS.get(kind) == logging.DEBUG and not self._logger.isEnabledFor(logging.DEBUG)
        return None if silent else self

    def __call__(self, observation: seen.Observation) -> None:
        level = _level(observation)
        if not self._logger.isEnabledFor(level):
            return
        if isinstance(observation, seen.LeaderObserved) and not self._is_news(observation):
            return
        suppressed: int | None = 0
        if isinstance(observation, (seen.WriteRefused, seen.WouldRefuse)):
            # The sampling's memory is keyed by configured words alone, so that no client can make it grow.
            place = (_EVENTS[type(observation)], self._roles.of(observation.role), observation.code)
            suppressed = self._windows.setdefault(place, _Window()).take(self._clock())
            if suppressed is None:
                return
        every = dataclasses.asdict(cast("Any", observation))  # All are dataclasses; their base has no fields.
        fields = {name: value for name, value in every.items() if value not in (None, "")}
        if suppressed:
            fields["suppressed"] = suppressed
        self._write(level, _event(type(observation)), fields)

    def flush(self) -> None:
        """Say how many refusals were left out, where nothing came after them. Call it now and then, and at the end."""
        for (event, role, code), window in self._windows.items():
            suppressed = window.rest(self._clock())
            if suppressed:
                self._write(logging.INFO, event, {"role": role, "code": code, "suppressed": suppressed})

    def _is_news(self, fact: seen.LeaderObserved) -> bool:
        known = (fact.token, fact.region, fact.node)
        known = _NOBODY if known == _NOBODY else known  # one object for all the roles that nobody leads
        news = self._leaders.get(fact.role) != known
        self._leaders[fact.role] = known
        return news

    def _write(self, level: int, event: str, fields: Fields) -> None:
        self._logger.log(level, event, extra={"fields": fields})


@dataclasses.dataclass(slots=True)
class _Window:
    """One second of refusals of one kind."""

    began: float = float("-inf")
    lines: int = 0
    suppressed: int = 0

    def take(self, now: float) -> int | None:
        """How many were left out before this one; ``None`` if this one is left out too."""
        if now - self.began >= 1:
            self.began, self.lines = now, 0
        if self.lines >= SAMPLE:
            self.suppressed += 1
            return None
        self.lines += 1
        left_out, self.suppressed = self.suppressed, 0
        return left_out

    def rest(self, now: float) -> int:
        """How many were left out of a second that is over."""
        if now - self.began < 1:
            return 0
        left_out, self.suppressed = self.suppressed, 0
        return left_out


def _level(observation: seen.Observation) -> int:
    level = _LEVELS.get(type(observation), logging.INFO)
    if level == logging.DEBUG:  # as what comes with every write
        return level
    if isinstance(observation, seen.LeadershipLost) and observation.reason in _ORDERLY:
        return logging.INFO
    if isinstance(observation, seen.CertificateExpiring) and observation.left <= 0:
        return logging.ERROR
    return level


def _event(kind: type[seen.Observation]) -> str:
    return _WORD.sub("_", kind.__name__).lower()


_EVENTS: Final = {kind: _event(kind) for kind in (seen.WriteRefused, seen.WouldRefuse)}


class _Lines(logging.Formatter):
    """``also`` are the fields that every line of this process has besides its own."""

    def __init__(self, also: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self._also = dict(also or {})

    def fields(self, record: logging.LogRecord) -> Fields:
        return {**self._also, **_fields(record)}


class TextLines(_Lines):
    """``2026-11-29T14:17:17.123Z INFO leadership_gained role=ledger token=42``."""

    def format(self, record: logging.LogRecord) -> str:
        fields, message = self.fields(record), json.dumps(record.getMessage())[1:-1]
        words = [_time(record), f"{record.levelname:<7}", message]
        words += [f"{name}={_value(value)}" for name, value in fields.items()]
        return " ".join(words)


class JsonLines(_Lines):
    """One JSON object per line: ``time``, ``level``, ``event``, and the fact's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: Fields = {"time": _time(record), "level": record.levelname.lower(), "event": record.getMessage()}
        line.update({name: _cut(value) for name, value in self.fields(record).items()})
        return json.dumps(line, default=str)


def _fields(record: logging.LogRecord) -> Fields:
    fields: Fields = dict(getattr(record, "fields", {}))
    if not hasattr(record, "fields"):
        fields["logger"] = record.name
    if record.exc_info and record.exc_info[1] is not None:
        fields["error"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        fields["trace"] = logging.Formatter().formatException(record.exc_info)
    return fields


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _cut(value: object) -> object:
    long = isinstance(value, str) and len(value) > _LONGEST and "\n" not in value
    return f"{str(value)[:_LONGEST]}..." if long else value


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.3f}"
    if isinstance(value, (tuple, list)):
        value = ",".join(str(item) for item in value)
    text = str(_cut(value))
    return text if _BARE.fullmatch(text) else json.dumps(text)


def configure(
    format: Format, level: Level, stream: TextIO | None = None, *, also: Mapping[str, object] | None = None
) -> None:
    """Send every logger's lines to ``stream`` (stderr), once; may be called again to change format or level.

    ``auto`` is text on a terminal and JSON elsewhere. Other libraries are heard from WARNING up. ``also``: fields
    for every line, such as the number of this worker.
    """
    out = stream or sys.stderr
    as_text = format == "text" or (format == "auto" and out.isatty())
    handler = logging.StreamHandler(out)
    handler.setFormatter(TextLines(also) if as_text else JsonLines(also))
    root = logging.getLogger()
    for old in list(root.handlers):
        if getattr(old, "of_fencegate", False):
            root.removeHandler(old)
    handler.of_fencegate = True  # type: ignore[attr-defined]
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("fencegate").setLevel(level.upper())
