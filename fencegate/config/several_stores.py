"""Several ``[[store]]`` tables: what they are called, which roles each holds, and what must hold between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fencegate.config.broken import Broken
from fencegate.config.settings import Settings
from fencegate.config.store import StoreSettings
from fencegate.config.stores import EXPECTED, Placement


def names_of(settings: Settings) -> list[str]:
    """What several stores are called; empty where there is one."""
    return [store.name or str(number) for number, store in enumerate(settings.stores, 1)]


def by_store(settings: Settings) -> dict[str, Settings]:
    """By the store's name, the settings of a gateway with that one store and its roles alone.

    With one store these are ``settings`` themselves, under the name ``""``. The election stays as it is: of several
    stores none is its default.
    """
    if not settings.stores:
        return {"": settings}
    placement = _placement(settings)

    def part(place: int, name: str) -> Settings:
        limited = [route.limited(lambda role: placement.of(role) == place) for route in settings.route]
        kept = [route for route in limited if route is not None]
        store = settings.stores[place].model_copy(update={"name": name})
        return settings.model_copy(update={"store": store, "stores": [], "route": kept})

    return {name: part(place, name) for place, name in enumerate(names_of(settings))}


def store_of(settings: Settings, role: str) -> StoreSettings | None:
    """The store that holds ``role``, which no route need have; ``None`` where no pattern of several matches it."""
    if not settings.stores:
        return settings.store
    place = _placement(settings).of(role)
    return None if place is None else settings.stores[place]


def _placement(settings: Settings) -> Placement:
    return Placement([store.roles for store in settings.stores])


def broken(settings: Settings, *, embedded: bool) -> Iterator[Broken]:
    """Each has an address and roles, and no two of them the same. Which roles they are: :func:`misplaced`."""
    if not settings.stores:
        return
    if embedded:
        yield Broken("stores", "expected no [[store]] together with --embedded, which starts its own Postgres")
    if settings.store != StoreSettings():
        sentence = "expected none of it beside several [[store]] tables, which it would be one of"
        yield Broken("store", sentence, ("stores.0",))
    if settings.election.over_postgres and settings.election.dsn is None:
        sentence = "missing; expected the election's own DSN: with several stores none of them is its default"
        yield Broken("election.dsn", sentence, ("stores.0",), missing=True)
    names = names_of(settings)
    for place, store in enumerate(settings.stores):
        key = f"stores.{place}"
        if store.dsn is None:
            yield Broken(f"{key}.dsn", "missing; expected a Postgres DSN for each of several stores", missing=True)
        if not store.roles:
            yield Broken(f"{key}.roles", f"missing; expected {EXPECTED}", missing=True)
        for other, earlier in enumerate(settings.stores[:place]):
            if store.dsn is not None and store.dsn == earlier.dsn:
                yield Broken(f"{key}.dsn", f"expected another DSN than that of [[store]] {other + 1}")
            if names[place] == names[other]:
                sentence = f"expected another name than that of [[store]] {other + 1}, {names[other]}"
                yield Broken(f"{key}.name", sentence, (f"stores.{other}.name",))
    for pattern, first, second in _placement(settings).twice:
        sentence = f"expected {pattern} in one store; [[store]] {first + 1} ({names[first]}) has it too"
        yield Broken(f"stores.{second}.roles", sentence, (f"stores.{first}.roles",))


def misplaced(settings: Settings, numbers: Sequence[int]) -> Iterator[Broken]:
    """Roles that no store holds, and patterns that place no role. ``numbers`` as for ``rules.broken``."""
    placed = settings.stores or [settings.store]
    if any(not store.roles for store in placed):
        return  # the only store holds every role; one of several without any is a fault of its own
    key = "stores.{}.roles" if settings.stores else "store.roles"
    placement = Placement([store.roles for store in placed])
    used: set[str] = set()
    for number, route in zip(numbers, settings.route, strict=True):
        found = {role: placement.pattern_of(role) for role in route.roles}
        used |= {pattern for pattern in found.values() if pattern is not None}
        homeless = [role for role, pattern in found.items() if pattern is None]
        if homeless:
            more = f" and {len(homeless) - 1} more" if len(homeless) > 1 else ""
            sentence = f"expected a store for {homeless[0]}{more}: no [[store]] has a pattern that matches it"
            yield Broken(f"route.{number}.role", sentence, tuple(key.format(place) for place in range(len(placed))))
    for place, store in enumerate(placed):
        for pattern in store.roles:
            if pattern not in used:
                sentence = f"expected patterns that place a role of a route; {pattern} places none"
                yield Broken(key.format(place), sentence, ("route",))
