"""Facts are frozen (but for two), made of plain values, and every one of them can be told as a log line."""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
from typing import Any

import pytest

from fencegate import observations
from fencegate.observations import Observation, WriteAccepted, WriteRefused, ignore
from fencegate.telemetry.logs import JsonLines, Logs, TextLines
from fencegate.telemetry.metrics import Metrics

KINDS = sorted(
    (
        kind
        for _, kind in inspect.getmembers(observations, inspect.isclass)
        if issubclass(kind, Observation) and kind is not Observation
    ),
    key=lambda kind: kind.__name__,
)
ONE_A_REQUEST = (WriteAccepted, WriteRefused)
"""Not frozen, since that triples what making one costs."""
EXAMPLES: dict[str, Any] = {
    "str": "word",
    "int": 7,
    "float": 0.5,
    "bool": True,
    "int | None": None,
    "tuple[str, ...]": ("a", "b"),
}


def example(kind: type[Observation]) -> Observation:
    return kind(**{field.name: EXAMPLES[str(field.type)] for field in dataclasses.fields(kind)})


def test_there_are_facts() -> None:
    assert len(KINDS) > 15


@pytest.mark.parametrize("kind", KINDS)
def test_a_fact_is_frozen_and_small(kind: type[Observation]) -> None:
    fact = example(kind)
    assert not hasattr(fact, "__dict__")
    assert hash(fact) == hash(example(kind))
    if kind in ONE_A_REQUEST:
        return
    for field in dataclasses.fields(kind):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(fact, field.name, None)


@pytest.mark.parametrize("kind", KINDS)
def test_every_fact_is_one_line_and_no_trouble_for_the_metrics(kind: type[Observation]) -> None:
    lines: list[str] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.extend([TextLines().format(record), JsonLines().format(record)])

    logger = logging.Logger("fencegate.test", logging.DEBUG)
    logger.addHandler(Keeping())
    Logs(["word"], logger=logger)(example(kind))
    Metrics(["word"], node="n", region="r", backend="etcd", version="1")(example(kind))
    text, as_json = lines
    assert "\n" not in text
    fact = json.loads(as_json)
    assert fact["event"].replace("_", "") == kind.__name__.lower()


def test_the_observer_that_ignores_takes_anything() -> None:
    assert ignore(example(KINDS[0])) is None
