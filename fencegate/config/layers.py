"""The sources of settings, each turned into a tree of values that remembers where every value came from."""

from __future__ import annotations

import difflib
import re
import tomllib
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from fencegate.config.settings import Settings
from fencegate.config.values import fields

PREFIX: Final = "FENCEGATE_"
RESERVED: Final = frozenset(
    f"{PREFIX}{name}" for name in ("TOKEN", "ROLE", "URL", "GRANT_FILE", "PG_BINDIR", "ZOOKEEPER_JARS", "CONFIG")
)
"""Variables of that prefix that are not settings."""

_SERVICE_HOST: Final = "_SERVICE_HOST"
_SERVICE_LINK: Final = re.compile(
    rf"{_SERVICE_HOST}|_SERVICE_PORT(_\w+)?|_PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?", re.ASCII
)
"""What follows a Service's name in the variables that a pod is told of it by."""

_DEEPEST: Final = 16
"""No setting lies deeper; what does would only end in the middle of being read."""
_TLS_FILES: Final = ("cert", "key", "client_ca")
KNOWN_NOT_YET: Final = (
    "peer.dsn",
    "peer.admin",
    *(f"tls.{name}" for name in _TLS_FILES),
)
"""Keys of the language that no model has, since nothing is built behind them."""

Tree = dict[str, Any]

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of the command line: its ``name`` as typed, the dotted ``key`` that it sets, and the text given."""

    name: str
    key: str
    text: str


@dataclass(slots=True)
class Layer:
    """Values as a tree; where each came from, by dotted path; and what was wrong with the source itself."""

    values: Tree = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def put(self, key: str, value: object, origin: str) -> None:
        *tables, last = key.split(".")
        tree = self.values
        for table in tables:
            tree = tree.setdefault(table, {})
        tree[last] = value
        self.origins[key] = origin

    def put_text(self, key: str, text: str, annotation: object, origin: str) -> None:
        """As :meth:`put`, for a value that came as text."""
        bare = text.strip()
        if list in set(_alternatives(annotation)) and bare.startswith("[") and bare.endswith("]"):
            self.faults.append(f"{key}: expected its values with commas between them, no brackets or quotes ({origin})")
            text = re.sub(r"[\"']", "", bare[1:-1])  # what was meant: no other fault is to be made of it
        self.put(key, from_text(text, annotation), origin)

    def origin_of(self, path: str) -> str | None:
        """Where the value at ``path``, or the first in it, or the nearest table around it, came from."""
        inside = next((origin for key, origin in self.origins.items() if key.startswith(f"{path}.")), None)
        if path not in self.origins and inside is not None:
            return inside
        while path:
            if path in self.origins:
                return self.origins[path]
            path = path.rpartition(".")[0]
        return None


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def keys(model: type[BaseModel] = Settings, above: str = "") -> dict[str, object]:
    """Every key that one value can set (no ``[[route]]``), dotted, with the annotation of its value."""
    found: dict[str, object] = {}
    for name, (_, info) in fields(model).items():
        inner = next(_models(info.annotation), None)
        if inner is None:
            found[f"{above}{name}"] = info.annotation
        elif get_origin(info.annotation) is not list:
            found.update(keys(inner, f"{above}{name}."))
    return found


def _alternatives(annotation: object) -> Iterator[object]:
    kind = get_origin(annotation)
    if kind is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif kind in (Union, types.UnionType):
        for inner in get_args(annotation):
            yield from _alternatives(inner)
    else:
        yield kind or annotation


def from_text(text: str, annotation: object) -> object:
    """``text`` as the kind of value that ``annotation`` takes; the text itself where it is no such thing."""
    kinds = set(_alternatives(annotation))
    if list in kinds:
        return [part.strip() for part in text.split(",") if part.strip()]
    if bool in kinds:
        return {"true": True, "false": False}.get(text.lower(), text)
    number = text.strip(" \t")
    if int in kinds and re.fullmatch(r"[+-]?[0-9]{1,18}", number, re.ASCII):
        return int(number)
    if float in kinds and re.fullmatch(r"[+-]?[0-9]{1,18}(\.[0-9]{1,9})?", number, re.ASCII):
        return float(number)
    return text


def nearest(name: str, known: Sequence[str]) -> str:
    """The end of a sentence that suggests the known name nearest to ``name``, or nothing."""
    begun = [each for each in known if each.startswith(name)]
    close = begun if len(begun) == 1 else difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _split(dotted: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in dotted.split("."))


def line_numbers(text: str) -> dict[str, int]:
    """The line of each key and table header, by dotted path, arrays of tables numbered from 0.

    A light reading, for messages only: a line inside a multi-line string may be taken for a key,
    but never in place of a key that stands earlier.
    """
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        header, key = _HEADER.match(line), _KEY.match(line)
        if header is not None:
            table = _split(header.group(2))
            above, dot, below = table.partition(".")
            if dot and above in counts:
                table = f"{above}.{counts[above]}.{below}"
            elif header.group(1) == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = f"{table}.{counts[table]}"
            lines.setdefault(table, number)
        elif key is not None:
            name = _split(key.group(1))
            lines.setdefault(f"{table}.{name}" if table else name, number)
    return lines


def _leaves(value: object, path: str = "") -> Iterator[str]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value and all(isinstance(inner, dict) for inner in value):
        for number, inner in enumerate(value):
            yield path_of_item(path, number)
            yield from _leaves(inner, path_of_item(path, number))
    elif path:
        yield path


def path_of_item(path: str, number: int) -> str:
    return f"{path}.{number}"


def from_file(name: str, text: str) -> Layer:
    """The layer of a TOML file; ``name`` is how messages call it."""
    layer = Layer()
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        layer.faults.append(f"file {name}: expected TOML: {error}")
        return layer
    except RecursionError:
        values = None
    if values is None or _too_deep(values):
        layer.faults.append(f"file {name}: expected tables and lists that are nested at most {_DEEPEST} deep")
        return layer
    layer.values = values
    layer.faults += [f"{key}: no such key; a dot belongs to no name (file {name})" for key in _dotted(layer.values)]
    lines = line_numbers(text)
    for path in _leaves(layer.values):
        line, known = None, path
        while line is None and known:
            line = lines.get(known)
            known = known.rpartition(".")[0]
        layer.origins[path] = f"file {name}, line {line}" if line else f"file {name}"
    _several_stores(layer)
    return layer


def _too_deep(values: Tree) -> bool:
    level: list[object] = [values]
    for _ in range(_DEEPEST):
        inner = [list(each.values()) if isinstance(each, dict) else each for each in level]
        level = [value for values in inner if isinstance(values, list) for value in values]
    return bool(level)


def _dotted(value: object) -> list[str]:
    """Take the keys with a dot in their own name out: by a dotted path nobody could find them again."""
    if isinstance(value, list):
        return [key for inner in value for key in _dotted(inner)]
    if not isinstance(value, dict):
        return []
    found = [name for name in value if "." in name]
    for name in found:
        del value[name]
    return [f'"{name}"' for name in found] + [key for inner in value.values() for key in _dotted(inner)]


def _several_stores(layer: Layer) -> None:
    """``[[store]]`` with one element is the same as ``[store]``; several are ``stores``, no key of the file."""
    if "stores" in layer.values:
        layer.faults.append(f"stores: no such key; several stores are [[store]] tables ({layer.origin_of('stores')})")
        del layer.values["stores"]
    tables = layer.values.get("store")
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        return
    if len(tables) > 1:
        layer.values["stores"] = layer.values.pop("store")
        before, after = "store", "stores"
    else:
        layer.values["store"] = tables[0] if tables else {}
        before, after = "store.0", "store"
    for path in [path for path in layer.origins if path == before or path.startswith(f"{before}.")]:
        layer.origins[after + path.removeprefix(before)] = layer.origins.pop(path)


def _service_links(variables: Iterable[str]) -> set[str]:
    """Those that Kubernetes gives each pod about a Service whose name begins with ``fencegate``: no settings."""
    names = [name for name in variables if name.startswith(PREFIX)]
    services = [name.removesuffix(_SERVICE_HOST) for name in names if name.endswith(_SERVICE_HOST)]
    return {
        name
        for service in services
        for name in names
        if name.startswith(service) and _SERVICE_LINK.fullmatch(name.removeprefix(service))
    }


def from_environment(environment: Mapping[str, str]) -> Layer:
    """The layer of the ``FENCEGATE_*`` variables: ``FENCEGATE_<SECTION>_<KEY>``, lists separated by commas."""
    layer = Layer()
    annotations = keys()
    names = {f"{PREFIX}{key.replace('.', '_').upper()}": key for key in (*annotations, *KNOWN_NOT_YET)}
    links = _service_links(environment)
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX) or variable in RESERVED:
            continue
        key = names.get(variable)
        if key is None and variable in links:
            continue
        if key is None:
            layer.faults.append(f"variable {variable}: no such setting{nearest(variable, [*names, *sorted(RESERVED)])}")
        else:
            layer.put_text(key, text, annotations.get(key, str), f"variable {variable}")
    return layer


def from_flags(flags: Sequence[Flag]) -> Layer:
    """The layer of the command line. A later flag wins over an earlier one for the same key."""
    layer = Layer()
    annotations = keys()
    known = (*annotations, *KNOWN_NOT_YET)
    for flag in flags:
        if flag.key in known:
            layer.put_text(flag.key, flag.text, annotations.get(flag.key, str), f"flag {_typed(flag)}")
        elif flag.key.split(".")[0] == "route":
            layer.faults.append(f"flag {flag.name}: expected no {flag.key}: routes are set in the file")
        elif inner := next((key for key in annotations if key.startswith(f"{flag.key}.")), None):
            layer.faults.append(f"flag {flag.name}: expected a key of the table {flag.key}, such as {inner}")
        else:
            layer.faults.append(f"flag {flag.name}: no setting {flag.key}{nearest(flag.key, known)}")
    return layer


def _typed(flag: Flag) -> str:
    return f"{flag.name} {flag.key}" if flag.name == "--set" else flag.name


def merge(layers: Sequence[Layer]) -> Layer:
    """All layers as one; a later layer wins, key by key; a list or ``[[route]]`` is replaced whole."""
    merged = Layer()
    for layer in layers:
        merged.values = _merge(merged.values, layer.values)
        replaced = [path for path in layer.values if isinstance(layer.values[path], list)]
        for path in [path for path in merged.origins if path.split(".")[0] in replaced]:
            del merged.origins[path]
        merged.origins.update(layer.origins)
        merged.faults.extend(layer.faults)
    return merged


def _merge(low: Tree, high: Tree) -> Tree:
    both = dict(low)
    for name, value in high.items():
        under = both.get(name)
        both[name] = _merge(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return both


def literal_choices(annotation: object) -> list[str]:
    """The words that a ``Literal`` in ``annotation`` allows; empty where there is none."""
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    return [word for inner in get_args(annotation) for word in literal_choices(inner)]
