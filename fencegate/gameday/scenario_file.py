"""Scenarios out of TOML, and faults out of ``--fault``: every fault of a file is told at once, with where it is."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from fencegate.errors import ConfigurationError
from fencegate.gameday.scenario import (
    EITHER,
    REGIONS,
    STATES,
    STEPS,
    Clients,
    Expected,
    ExtraFault,
    Scenario,
    Step,
    inconsistencies,
)

LONGEST: Final = 86_400.0
_PART_OF_A_DAY: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,3})?)(ms|s|m|h)?", re.ASCII)
_SHOWN: Final = 60

Check = Callable[[Any], str]
"""What was expected of a value; ``""`` where it is that."""


def shipped() -> dict[str, str]:
    """The text of every shipped scenario, by name."""
    found = files("fencegate.gameday").joinpath("scenarios").iterdir()
    return {one.name.removesuffix(".toml"): one.read_text("utf-8") for one in found if one.name.endswith(".toml")}


def load(name_or_path: str) -> Scenario:
    """The shipped scenario of this name, or the one in the file. Raises :class:`ConfigurationError`."""
    ours = shipped()
    if name_or_path in ours:
        return parse(ours[name_or_path], name_or_path)
    path = Path(name_or_path)
    if not path.suffix and not path.exists():
        raise ConfigurationError(
            [f"--scenario {_shown(name_or_path)}: expected a file, or one of {', '.join(sorted(ours))}"]
        )
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError([f"--scenario {_shown(name_or_path)}: cannot read it: {reason}"]) from None
    return parse(text, path.stem, origin=str(path))


def parse(text: str, name: str, *, origin: str = "") -> Scenario:
    """The scenario that ``text`` holds. Raises :class:`ConfigurationError` with every fault, each naming ``origin``."""
    where = origin or f"scenario {name}"
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError([f"{where}: not TOML: {error}"]) from None
    faults: list[str] = []
    top = _fields(document, _TOP, faults, "", needs=("title", "step"))
    steps = document.get("step")
    tables = steps if isinstance(steps, list) else []
    made = [_step(table, f"step {number}", faults) for number, table in enumerate(tables, start=1)]
    clients = _fields(document.get("clients", {}), _CLIENTS, faults, "clients")
    expect = _fields(document.get("expect", {}), _EXPECT, faults, "expect")
    if isinstance(terms := expect.get("terms"), int):
        expect["terms"] = (terms, terms)
    elif terms is not None:
        expect["terms"] = tuple(terms)
    if not faults:
        about = " ".join(str(top.get("about", "")).split())
        scenario = Scenario(name, top["title"], about, tuple(made), Clients(**clients), Expected(**expect))
        faults = list(inconsistencies(scenario))
    if faults:
        raise ConfigurationError([f"{where}: {fault}" for fault in faults])
    return scenario


def parse_fault(text: str) -> ExtraFault:
    """The fault of ``STRIKE:PART[,at=SECONDS][,for=SECONDS]``. Raises ``ValueError`` with what was expected."""
    expected = "expected STRIKE:PART[,at=SECONDS][,for=SECONDS], such as freeze:primary-gateway,at=5,for=2s"
    strike, colon, rest = text.partition(":")
    part, *pairs = rest.split(",")
    values = {"at": 5.0, "for": 2.0}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name not in values:
            raise ValueError(f"{expected}; not {_shown(pair)}")
        values[name] = parse_duration(value)
    if not colon or not strike or not part:
        raise ValueError(f"{expected}; not {_shown(text)}")
    return ExtraFault(strike, part, values["at"], values["for"])


def parse_duration(text: str) -> float:
    """Seconds, out of ``20m``, ``1.5h``, ``90s``, ``250ms`` or ``90``. Raises ``ValueError``."""
    found = _DURATION.fullmatch(text)
    seconds = float(found[1]) * _PART_OF_A_DAY[found[2] or "s"] if found else math.inf
    if seconds > LONGEST:
        raise ValueError(f"expected a duration such as 90s, 20m or 1h, of a day at most; not {_shown(text)}")
    return seconds


def _step(table: object, where: str, faults: list[str]) -> Step:
    do = table.get("do") if isinstance(table, dict) else None
    if not isinstance(do, str) or do not in STEPS:
        given = "missing" if do is None else _shown(do)
        faults.append(f"{where}: do: expected one of {', '.join(STEPS)}; it is {given}")
        return Step("")
    rule = STEPS[do]
    may = ("do", "act", "say", *rule.needs, *rule.may, *(("seconds", "leases") if rule.timed else ()))
    found = _fields(table, {name: _STEP[name] for name in may}, faults, where, needs=rule.needs)
    if rule.timed and not {"seconds", "leases"} & set(found):
        faults.append(f"{where}: expected seconds or leases")
    if do != "wait" and found.get("region") == EITHER:
        faults.append(f"{where}: region: expected one of {', '.join(REGIONS)}; only a wait takes {EITHER}")
    if "turn" in found and found.get("until") != "open":
        faults.append(f'{where}: turn: expected only with until = "open"')
    return Step(**found)


def _fields(
    table: object, checks: Mapping[str, Check], faults: list[str], where: str, needs: Collection[str] = ()
) -> dict[str, Any]:
    """The values that are as expected; every other one, every key too many and too few is a fault."""
    if not isinstance(table, dict):
        faults.append(f"{where}: expected a table; it is {_shown(table)}")
        return {}
    begin = f"{where}: " if where.startswith("step") else f"{where}." if where else ""
    good = {}
    for key, value in table.items():
        if key not in checks:
            faults.append(f"{begin}{key}: no such key; expected {', '.join(checks)}")
        elif expected := checks[key](value):
            faults.append(f"{begin}{key}: expected {expected}; it is {_shown(value)}")
        else:
            good[key] = value
    faults += (f"{begin}{key}: missing; expected {checks[key](None)}" for key in needs if key not in table)
    return good


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _text(longest: int) -> Check:
    def check(value: Any) -> str:
        good = isinstance(value, str) and 0 < len(value) <= longest
        return "" if good else f"a text of 1 to {longest} characters"

    return check


def _one_of(*names: str) -> Check:
    return lambda value: "" if isinstance(value, str) and value in names else f"one of {', '.join(names)}"


def _number(least: float, most: float, *, whole: bool = False) -> Check:
    def check(value: Any) -> str:
        right = isinstance(value, int) or (isinstance(value, float) and not whole)
        good = right and not isinstance(value, bool) and least <= value <= most
        return "" if good else f"a {'whole ' if whole else ''}number of {least:g} to {most:g}"

    return check


def _terms(value: Any) -> str:
    count = _number(0, 1000, whole=True)
    if not count(value):
        return ""
    good = isinstance(value, list) and len(value) == 2 and not any(map(count, value)) and value[0] <= value[1]
    return "" if good else "a whole number, or two as [fewest, most]"


def _flag(value: Any) -> str:
    return "" if isinstance(value, bool) else "true or false"


def _table(value: Any) -> str:
    return "" if isinstance(value, dict) else "a table"


def _tables(value: Any) -> str:
    good = isinstance(value, list) and value and all(isinstance(one, dict) for one in value)
    return "" if good else "at least one [[step]] table"


_TOP: Final[dict[str, Check]] = {
    "title": _text(100),
    "about": _text(2000),
    "clients": _table,
    "expect": _table,
    "step": _tables,
}
_CLIENTS: Final[dict[str, Check]] = {
    "count": _number(2, 200, whole=True),
    "stale": _number(0, 1),
    "zombies": _number(0, 50, whole=True),
}
_EXPECT: Final[dict[str, Check]] = {
    "verdict": _one_of("pass", "fail"),
    "leader": _one_of(*REGIONS, EITHER),
    "terms": _terms,
    "closed_within": _number(0, 100),
    "open_within": _number(0, 100),
    "tail": _one_of("clears", "none"),
    "refused": _number(0, 1_000_000, whole=True),
}
_STEP: Final[dict[str, Check]] = {
    "do": _one_of(*STEPS),
    "act": _text(100),
    "say": _text(200),
    "region": _one_of(*REGIONS, EITHER),
    "until": _one_of(*STATES),
    "within": _number(0.1, 100),
    "turn": _text(40),
    "seconds": _number(0, LONGEST),
    "leases": _number(0, 100),
    "strike": _text(40),
    "part": _text(40),
    "stale": _flag,
}
