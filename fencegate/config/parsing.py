"""From layers to :class:`Settings`, or to every fault at once: key, value, expectation, origin.

The shape is checked first. Rules between keys are then checked on whatever has the right shape, so
that one wrong key does not hide another fault; a rule about a key already found wrong is silent.
A value that can hold a secret is printed without it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from fencegate.config import portability, rules, several_stores
from fencegate.config.broken import Broken
from fencegate.config.layers import (
    Flag,
    Layer,
    Tree,
    from_environment,
    from_file,
    from_flags,
    literal_choices,
    merge,
    nearest,
)
from fencegate.config.settings import NOT_YET, Settings
from fencegate.config.values import fields
from fencegate.errors import ConfigurationError

FLAGS: Final = {
    "node": "--node",
    "region": "--region",
    "advertise": "--advertise",
    "workers": "--workers",
    "listen.data": "--data",
    "listen.admin": "--admin",
    "store.dsn": "--store-dsn",
    "election.source": "--election",
    "log.format": "--log-format",
    "log.level": "--log-level",
}
"""The keys that have a flag of their own; all others are set by ``--set key=value``."""

UNADVERTISED: Final = "http://unadvertised.invalid"
"""Stands for no ``advertise`` where none is needed."""

_PLACEHOLDERS: Final[Tree] = {"node": "unknown", "region": "unknown", "advertise": "http://unknown"}
_NUMBERED: Final = re.compile(r"^(route|store)s?\.(\d+)\.?")
_SECRETS: Final = frozenset({"store.dsn", "stores.dsn", "election.dsn", "peer.dsn"})
_CREDENTIALS: Final = re.compile(r"(://[^/@:?#\s]*):.*@")
_PASSWORD: Final = re.compile(r"(?i)\b(password|passwd|sslpassword|token|secret)=[^&\s]*")


def parse(
    *,
    file: tuple[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Sequence[Flag] = (),
    defaults: Tree | None = None,
    embedded: bool = False,
    only_election: bool = False,
) -> Settings:
    """The settings of a file (name, text), the environment and the flags, in rising order of precedence.

    ``defaults`` lie under all of them. ``embedded`` allows a store without a DSN, and refuses one
    with it. ``only_election`` is for a process that campaigns and serves nothing: it needs neither store nor
    routes, and without ``advertise`` that is ``UNADVERTISED``. Raises :class:`ConfigurationError` with every fault.
    """
    under = deepcopy(defaults or {})
    if only_election:
        under.setdefault("advertise", UNADVERTISED)
    layers = [Layer(values=under)]
    if file is not None:
        layers.append(from_file(*file))
    layers += [from_environment(environment or {}), from_flags(flags)]
    if any("stores" in layer.values for layer in layers):
        under.pop("store", None)
    merged = merge(layers)
    faults = [*merged.faults, *_not_built(merged)]
    # Of a file that could not be read nobody knows what is missing.
    unread = any(fault.startswith("file ") for fault in merged.faults)
    settings, wrong, shape_faults, numbers = _shaped(merged, told_all=not unread)
    faults += shape_faults
    if not unread:
        broken = _broken(settings, numbers, embedded, only_election)
        if any("route" in layer.values for layer in layers[1:]):
            broken += several_stores.misplaced(settings, numbers)
        faults += _rule_faults(merged, broken, wrong)
    if faults:
        raise ConfigurationError([_printable(fault) for fault in faults])
    return settings


def broken_rules(settings: Settings, *, embedded: bool) -> list[str]:
    """The faults of settings that have the right shape, whatever they were put together from."""
    broken = _broken(settings, list(range(len(settings.route))), embedded, only_election=False)
    return [_printable(fault) for fault in _rule_faults(Layer(values=settings.document()), broken, set())]


def _printable(fault: str) -> str:
    """A fault quotes what it was given, which may be anything; a terminal is shown none of its control characters."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in fault)


def _broken(settings: Settings, numbers: list[int], embedded: bool, only_election: bool) -> list[Broken]:
    if only_election:
        return list(rules.broken_election(settings))
    return [
        *several_stores.broken(settings, embedded=embedded),
        *portability.broken(settings, numbers),
        *rules.broken(settings, numbers, embedded=embedded),
    ]


def shown(path: str, value: object) -> str:
    """``value`` as a message may print it: short, and without any password."""
    if isinstance(value, str):
        masked = _PASSWORD.sub(r"\1=***", _CREDENTIALS.sub(r"\1:***@", value))
        if path in _SECRETS and "://" not in value:
            masked = "***"
        return f'"{masked if len(masked) <= 120 else masked[:117] + "..."}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, list):
        return "[" + ", ".join(shown(path, inner) for inner in value[:8]) + (", ...]" if len(value) > 8 else "]")
    return "a table" if isinstance(value, dict) else f"a {type(value).__name__}"


def _fault(merged: Layer, path: str, sentence: str, *, show: bool = True, others: Sequence[str] = ()) -> str:
    value = _at(merged.values, path) if show else None
    name = _named(path)
    head = name if value is None else f"{name} = {shown(_generic(path), value)}"
    origins = [merged.origin_of(path), *(merged.origins.get(other) for other in others)]
    where = "; ".join(dict.fromkeys(origin for origin in origins if origin))
    return f"{head}: {sentence}" + (f" ({where})" if where else "")


def _named(path: str) -> str:
    """How messages call the key: ``[[route]] 1 path``."""
    return _NUMBERED.sub(lambda found: f"[[{found.group(1)}]] {int(found.group(2)) + 1} ", path).strip()


def _at(tree: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(tree, dict) and part in tree:
            tree = tree[part]
        elif isinstance(tree, list) and part.isdigit() and int(part) < len(tree):
            tree = tree[int(part)]
        else:
            return None
    return tree


def _remove(tree: Any, path: str) -> None:
    above, _, last = path.rpartition(".")
    table = _at(tree, above) if above else tree
    if isinstance(table, dict):
        table.pop(last, None)
    elif isinstance(table, list) and above:
        _remove(tree, above)


def _generic(path: str) -> str:
    return ".".join(part for part in path.split(".") if not part.isdigit())


def _not_built(merged: Layer) -> list[str]:
    """Refuse known keys that nothing is built behind, and take them out of the tree."""
    faults = []
    for path in _tables(merged.values):
        sentence = NOT_YET.get(_generic(path))
        if sentence is not None:
            faults.append(_fault(merged, path, sentence, show=False))
            _remove(merged.values, path)
    return faults


def _tables(value: object, path: str = "") -> list[str]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    paths = []
    for name, below in inner:
        here = f"{path}.{name}" if path else str(name)
        paths.append(here)
        if _generic(here) not in NOT_YET:
            paths += _tables(below, here)
    return paths


def _shaped(merged: Layer, *, told_all: bool) -> tuple[Settings, set[str], list[str], list[int]]:
    """The settings, with faulty keys left at their defaults and faulty routes left out.

    With them: the faulty keys; their faults, of missing ones only where all were told; which ``[[route]]`` each route
    left is.
    """
    tree = deepcopy(merged.values)
    try:
        settings = Settings.model_validate(tree)
        return settings, set(), [], list(range(len(settings.route)))
    except ValidationError as error:
        details = error.errors(include_url=False)
    faults: dict[str, str] = {}
    for detail in details:
        if detail["type"] == "missing" and not told_all:
            continue
        path = _path_in(tree, detail["loc"])
        faults.setdefault(path, _shape_fault(merged, path, detail))
    for path in faults:
        parts = path.split(".")
        _blank(tree, ".".join(parts[:2]) if parts[0] == "route" else path)
    numbers = [number for number, route in enumerate(tree.get("route", [])) if route is not None]
    tree["route"] = [tree["route"][number] for number in numbers]
    for name, value in _PLACEHOLDERS.items():
        tree.setdefault(name, value)
    return Settings.model_validate(tree), set(faults), list(faults.values()), numbers


def _path_in(tree: Tree, loc: Sequence[int | str]) -> str:
    """The dotted path of a pydantic location, without the union branches that pydantic adds to it."""
    parts: list[str] = []
    here: Any = tree
    for part in loc:
        if isinstance(part, str) and parts and not _holds_tables(".".join(parts)):
            break  # a branch, even where the value is a table that has a key of that name
        if isinstance(here, dict):
            here = here.get(str(part))
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = here[part]
        else:
            break
        parts.append(str(part))
    return ".".join(parts)


def _holds_tables(path: str) -> bool:
    above, _, name = _generic(path).rpartition(".")
    known = fields(_model_at(above)).get(name)
    return known is None or next(_inner_models(known[1].annotation), None) is not None


def _blank(tree: Tree, path: str) -> None:
    """Take a faulty value out; a route keeps its place so that the numbers of the others stay right."""
    above, _, last = path.rpartition(".")
    table = _at(tree, above) if above else tree
    if isinstance(table, list) and last.isdigit():
        if above == "route":
            table[int(last)] = None
        else:
            _remove(tree, above)
    elif isinstance(table, dict):
        table.pop(last, None)


def _shape_fault(merged: Layer, path: str, detail: ErrorDetails) -> str:
    kind = detail["type"]
    above, _, name = path.rpartition(".")
    if kind == "extra_forbidden":
        known = list(fields(_model_at(above)))
        return _fault(merged, path, f"no such key{nearest(name, known)}", show=False)
    if kind == "missing":
        return _missing(merged, path)
    if kind == "value_error":
        sentence = str(detail.get("ctx", {}).get("error", detail["msg"]))
        return _fault(merged, path, sentence)
    expected = _expected(path)
    value = _at(merged.values, path)
    guess = nearest(value, literal_choices(_field(path).annotation)) if isinstance(value, str) else ""
    return _fault(merged, path, f"expected {expected}{guess}")


def _missing(merged: Layer, path: str) -> str:
    if path.startswith("route"):
        return _fault(merged, path, f"missing; expected {_expected(path)}", show=False)
    variable = f"FENCEGATE_{path.replace('.', '_').upper()}"
    flag = FLAGS.get(path, f"--set {path}=VALUE")
    return f"{path}: missing; expected {_expected(path)} (set {path} in the file, {variable}, or {flag})"


def _model_at(path: str) -> type[BaseModel]:
    model: type[BaseModel] = Settings
    for part in _generic(path).split("."):
        if part in model.model_fields:
            model = next(_inner_models(model.model_fields[part].annotation), model)
    return model


def _inner_models(annotation: object) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _inner_models(inner)


def _field(path: str) -> FieldInfo:
    above, _, name = _generic(path).rpartition(".")
    return fields(_model_at(above))[name][1]


def _expected(path: str) -> str:
    info = _field(path)
    words = [info.description] if info.description else _descriptions(info.annotation)
    if words:
        return " or ".join(words)
    return "a table"


def _descriptions(annotation: object) -> list[str]:
    metadata = getattr(annotation, "__metadata__", ())
    here = [item.description for item in metadata if isinstance(item, FieldInfo) and item.description]
    return here or [word for inner in get_args(annotation) for word in _descriptions(inner)]


def _rule_faults(merged: Layer, broken: list[Broken], wrong: set[str]) -> list[str]:
    faults = []
    for rule in broken:
        involved = (rule.key, *rule.others)
        if any(bad == key or bad.startswith(f"{key}.") for bad in wrong for key in involved):
            continue
        if rule.missing:
            faults.append(f"{_named(rule.key)}: {rule.sentence}" if rule.sentence else _missing(merged, rule.key))
        else:
            faults.append(_fault(merged, rule.key, rule.sentence, others=rule.others))
    return faults
