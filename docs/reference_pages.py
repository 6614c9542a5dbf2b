"""The pages that are made of the program: problem codes, settings and metrics. Each is a function to Markdown.

Written into ``docs/generated`` at every build, so that none can be older than what it tells of. What a table
can't know (when a code is met, and what to do then) is in ``problems.toml``, one entry per code.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args

from prometheus_client import CollectorRegistry, Metric
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fencegate.config import settings
from fencegate.config.layers import PREFIX
from fencegate.config.reloading import RELOADABLE
from fencegate.config.values import fields
from fencegate.errors import OUTCOME_TIMEOUT_STATUS, PROBLEMS, Problem, Retry
from fencegate.telemetry.metrics import Metrics
from fencegate.telemetry.process_metrics import register_process
from fencegate.telemetry.shares import Whole

NOTES: Final[dict[str, dict[str, str]]] = tomllib.loads(Path(__file__).with_name("problems.toml").read_text())
"""By problem code: ``when`` it is met, and what to ``do``."""

APPLIED: Final = {
    "no": "`no`: this write is not in the store, and never will be through this request",
    "unknown": "`unknown`: it may have been applied",
}
RETRY: Final = {
    Retry.NEVER: "`never`: the same request would be refused again",
    Retry.AFTER_DELAY: "`after-delay`: the same request later, after `Retry-After` where it is there",
    Retry.REDISCOVER: "`rediscover`: ask who leads (or take the hint), then the same operation under that token",
    Retry.IF_IDEMPOTENT: "`if-idempotent`: only with the same `Idempotency-Key`, or where a second time does no harm",
}


def write(folder: Path) -> None:
    """Write all of them below ``folder``; a file that is right already keeps its time, so Sphinx can skip it."""
    wanted = pages()
    for found in folder.rglob("*.md"):
        if str(found.relative_to(folder)) not in wanted:
            found.unlink()
    for name, text in wanted.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def pages() -> dict[str, str]:
    """Every page by its path below ``generated``."""
    made = {f"problems/{code}.md": problem_page(problem) for code, problem in PROBLEMS.items()}
    return made | {"problems.md": problems_page(), "settings.md": settings_page(), "metrics.md": metrics_page()}


# -- problem codes ------------------------------------------------------------------------------------


def problems_page() -> str:
    rows = [
        f"| [`{p.code}`](problems/{p.code}.md) | {_status(p)} | {p.retry} | {p.applied} | {p.title} |"
        for p in PROBLEMS.values()
    ]
    tree = ["```{toctree}", ":hidden:", "", *(f"problems/{code}" for code in PROBLEMS), "```"]
    head = [
        "# Problem codes",
        "",
        "The code of a refusal is in the header `X-Fencing-Outcome` and in the body's `code`.",
        "A published code never changes its status or its meaning.",
        "",
        "| code | status | retry | applied | |",
        "| --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*head, *rows, "", *tree, ""])


def problem_page(problem: Problem) -> str:
    notes = NOTES[problem.code]
    lines = [
        f"# {problem.code}",
        "",
        f"**{problem.title}.** {notes['when']}",
        "",
        "| | |",
        "| --- | --- |",
        f"| status | {_status(problem)} |",
        f"| `X-Fencing-Applied` | {APPLIED[problem.applied]} |",
        f"| `X-Fencing-Retry` | {RETRY[problem.retry]} |",
        f"| `type` | `{problem.type}` |",
        "",
        "## What to do",
        "",
        notes["do"],
        "",
    ]
    return "\n".join(lines)


def _status(problem: Problem) -> str:
    timed_out = f" or {OUTCOME_TIMEOUT_STATUS}" if problem.code == "outcome_unknown" else ""
    return f"{problem.status}{timed_out}"


# -- settings -----------------------------------------------------------------------------------------


def settings_page() -> str:
    head = """\
# Configuration

One TOML file, `FENCEGATE_*` variables, and `--set key=value`, in rising order of precedence. A wrong configuration
prints all of its faults at once and exits 78. A key marked *reload* is taken by a SIGHUP, and so are the routes as long
as the roles stay the same ones; every other key needs a restart. Durations are seconds. In a variable or a `--set` a
list has commas between its values, without brackets or quotes. What Kubernetes tells a pod of a Service called
`fencegate` is no setting.
"""
    return head + "".join(_table(name, model) for name, model in tables(settings.Settings)) + _not_yet()


def tables(model: type[BaseModel], name: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every table of the configuration with its dotted name, the nameless one at the top first."""
    yield name, model
    for key, (_, info) in fields(model).items():
        inner = _model_in(info.annotation)
        if inner is not None and key != "stores":  # the tables [[store]], which are described with [store]
            yield from tables(inner, f"{name}.{key}" if name else key)


def _table(name: str, model: type[BaseModel]) -> str:
    title = f"`[[{name}]]`" if name == "route" else f"`[{name}]`" if name else "At the top"
    lines = ["", f"## {title}", ""]
    if model.__doc__:
        lines += [_markdown(model.__doc__), ""]
    lines += ["| key | expected | default | variable |", "| --- | --- | --- | --- |"]
    for key, (_, info) in fields(model).items():
        if _model_in(info.annotation) is None:
            lines.append(_row(name, key, info))
    return "\n".join([*lines, ""])


def _row(table: str, key: str, info: FieldInfo) -> str:
    dotted = f"{table}.{key}" if table else key
    default = "required" if info.is_required() else _literal(info.default)
    reload = ", *reload*" if dotted.startswith(RELOADABLE) else ""
    # Routes are a list of tables: no variable can name one of them.
    variable = "" if table == "route" else f"`{PREFIX}{dotted.replace('.', '_').upper()}`"
    return f"| `{key}`{reload} | {_cell(_expected(info))} | {default} | {variable} |"


def _expected(info: FieldInfo) -> str:
    """The description, which may stand on the field or on an alternative of its type; of a list, on its items."""
    return info.description or next(_descriptions(info.annotation), "")


def _descriptions(annotation: Any) -> Iterator[str]:
    for part in getattr(annotation, "__metadata__", ()):
        if isinstance(part, FieldInfo) and part.description:
            yield part.description
    for part in get_args(annotation):
        yield from _descriptions(part)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part)) is not None), None)


def _literal(value: Any) -> str:
    if value is None:
        return "none"
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value!r}`".replace("'", '"')


def _not_yet() -> str:
    rows = [f"| `{key}` | {_cell(why)} |" for key, why in settings.NOT_YET.items()]
    head = ["", "## Known and refused", "", "These are keys of the language without a feature behind them yet."]
    return "\n".join([*head, "", "| key | instead |", "| --- | --- |", *rows, ""])


# -- metrics ------------------------------------------------------------------------------------------


def metrics_page() -> str:
    lines = [
        "# Metrics",
        "",
        "`GET /metrics` on the admin listener. Names and labels are a contract.",
        "No label ever takes a client's value, and every combination of labels is there from the start, at 0.",
        "",
        "| name | kind | labels | |",
        "| --- | --- | --- | --- |",
    ]
    for metric in metrics():
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        labels = ", ".join(f"`{label}`" for label in labels_of(metric))
        lines.append(f"| `{name}` | {metric.type} | {labels} | {_cell(metric.documentation)} |")
    lines += [
        "",
        "`leader_count` is a recording rule, `sum by (role) (fencing_leader)`: page on 0 and on 2.",
        "The `process_*` metrics are there on Linux, the two of workers with several of them.",
        "",
    ]
    return "\n".join(lines)


def metrics() -> list[Metric]:
    """Every metric that a gateway can have on its page, in the page's order."""
    one = Metrics(["ledger"], node="gw-1", region="eu", backend="etcd", version="0")
    Whole(one)
    return [metric for metric in (*one.registry.collect(), *asyncio.run(_of_the_process())) if metric.samples]


async def _of_the_process() -> list[Metric]:
    registry = CollectorRegistry()
    register_process(registry)
    return list(registry.collect())


def labels_of(metric: Metric) -> list[str]:
    return [label for label in metric.samples[0].labels if label != "le"]


# -- text ---------------------------------------------------------------------------------------------


def _markdown(docstring: str) -> str:
    """A docstring's double backticks as Markdown's, its indentation gone."""
    return "\n".join(line.strip() for line in docstring.strip().splitlines()).replace("``", "`")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("{", "\\{")
