"""Which keys can change while the process runs, and which of two settings' differences are such."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel

from fencegate.config.parsing import broken_rules
from fencegate.config.settings import Settings
from fencegate.config.values import fields

RELOADABLE: Final = ("log.", "limits.", "idempotency.", "admin.")
"""Prefixes of the keys that a SIGHUP can change; the routes by :func:`same_roles`. All else is wired once, at start."""
_ROUTES: Final = "route."


def differences(old: Settings, new: Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The dotted keys that differ: those that can be reloaded, and those that need a restart. Never their values."""
    before, after = _flat(old), _flat(new)
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    prefixes = (*RELOADABLE, _ROUTES) if same_roles(old, new) else RELOADABLE
    reloadable = tuple(key for key in changed if key.startswith(prefixes))
    return reloadable, tuple(key for key in changed if key not in reloadable)


def same_roles(old: Settings, new: Settings) -> bool:
    """Whether the routes can change without a restart: all of them, or, where this is false, none.

    An elector, a fence's row, a metric's label and the way in which a role's writes are committed are made at start,
    for each role.
    """
    return all(
        set(before) == set(after)
        for before, after in (
            (old.roles, new.roles),
            (old.families, new.families),
            (old.validated, new.validated),
            (old.rehearsals.items(), new.rehearsals.items()),
            ((old.pending,), (new.pending,)),
        )
    )


def taken(old: Settings, new: Settings) -> Settings:
    """The settings that are in use once ``new`` was read over ``old``: what can be reloaded, and all else as it was."""
    tables = {name: getattr(new, name) for name in (prefix.removesuffix(".") for prefix in RELOADABLE)}
    return old.model_copy(update={**tables, "route": new.route if same_roles(old, new) else old.route})


def faults_of_halves(old: Settings, new: Settings) -> list[str]:
    """Why ``new`` cannot be taken while what needs a restart stays as it was; empty where it can."""
    _, needs_restart = differences(old, new)
    if not needs_restart:
        return []
    embedded = old.store.dsn is None and not old.stores
    now = taken(old, new)
    faults = broken_rules(now, embedded=embedded)
    if new.upstream != old.upstream:
        # By the old table a target that is new would be verified by other authorities than were written beside it.
        secure = [url for url in now.upstreams if url.startswith("https:") and url not in old.upstreams]
        faults = [*faults, *(f"target {url}: expected to be reached by the new upstream.tls" for url in secure)]
    why = f"as long as {', '.join(needs_restart)} would stay as before: restart instead"
    return [f"{fault}; {why}" for fault in faults]


def _flat(model: BaseModel, above: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, (name, _) in fields(type(model)).items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            flat.update(_flat(value, f"{above}{key}."))
        elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
            for number, inner in enumerate(value):
                flat.update(_flat(inner, f"{above}{key}.{number}."))
        else:
            flat[f"{above}{key}"] = value
    return flat
