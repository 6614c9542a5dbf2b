"""What ``fencegate doctor`` says of one thing that it looked at."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(enum.StrEnum):
    """From all is well to what must be mended."""

    FINE = "fine"
    UNKNOWN = "unknown"
    """Not measured, for a reason that has a finding of its own or is no fault."""
    NOTE = "note"
    """Worth knowing; nothing need be done."""
    WARNING = "warning"
    """It works, and will not under the circumstances named."""
    FAULT = "fault"
    """It does not work, or a promise of the README does not hold."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``check`` is its name, ``subject.aspect``, and stays what it is. ``advice`` says what to do, "" where nothing."""

    check: str
    severity: Severity
    measured: str
    expected: str
    advice: str = ""


def fine(check: str, measured: str, expected: str) -> Finding:
    return Finding(check, Severity.FINE, measured, expected)


def unknown(check: str, why: str, expected: str) -> Finding:
    return Finding(check, Severity.UNKNOWN, f"not measured: {why}", expected)


def note(check: str, measured: str, expected: str, advice: str = "") -> Finding:
    return Finding(check, Severity.NOTE, measured, expected, advice)


def warning(check: str, measured: str, expected: str, advice: str) -> Finding:
    return Finding(check, Severity.WARNING, measured, expected, advice)


def fault(check: str, measured: str, expected: str, advice: str) -> Finding:
    return Finding(check, Severity.FAULT, measured, expected, advice)


def milliseconds(seconds: float) -> str:
    """``3 ms``; below ten with one digit more."""
    found = seconds * 1000
    return f"{found:.1f} ms" if found < 10 else f"{found:.0f} ms"


def listed(names: list[str] | tuple[str, ...], most: int = 5) -> str:
    """``a, b and 3 more``."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
