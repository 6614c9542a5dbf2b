"""What must hold for a store in portability mode (``docs/portability.md``): what cannot be kept there is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fencegate.config.broken import Broken
from fencegate.config.settings import Settings
from fencegate.config.several_stores import store_of
from fencegate.config.store import StoreSettings


def broken(settings: Settings, numbers: Sequence[int]) -> Iterator[Broken]:
    """Every rule of the mode that the settings break. ``numbers`` as for ``rules.broken``."""
    named = {f"stores.{place}": store for place, store in enumerate(settings.stores)} or {"store": settings.store}
    for key, store in named.items():
        if store.portability:
            yield from _clocks(key, store, settings)
        elif store.clock_offset is not None:
            yield Broken(f"{key}.clock_offset", "expected portability = true with it", (f"{key}.portability",))
    portable = {f"{key}.portability": store for key, store in named.items() if store.portability}
    if portable:
        yield from _election(settings, portable)
        yield from _validated(settings, numbers, tuple(portable))


def _clocks(key: str, store: StoreSettings, settings: Settings) -> Iterator[Broken]:
    """Rule R4, with several clocks: nobody but the operator knows how far they may be apart."""
    both = (f"{key}.portability",)
    if store.clock_offset is None:
        sentence = (
            "missing; expected with portability the furthest, in seconds, that the clocks of two nodes of the store "
            "may be apart (0 for a single node)"
        )
        yield Broken(f"{key}.clock_offset", sentence, both, missing=True)
        return
    if settings.election.timings.faults():
        return  # they are said without it
    names = tuple(f"election.{name}" for name in ("lease_duration", "margin", "renew_deadline"))
    for fault in replace(settings.election.timings, clock_offset=store.clock_offset).faults():
        yield Broken(f"{key}.clock_offset", f"expected timings that hold together: {fault}", names)


def _election(settings: Settings, portable: dict[str, StoreSettings]) -> Iterator[Broken]:
    keys, election = tuple(portable), settings.election
    if election.mode == "follow":
        sentence = (
            "expected campaign with portability: a copy of the store that is restored is not known to be one, and "
            "without a lease it would take old tokens until fencegate rebase"
        )
        yield Broken("election.mode", sentence, keys)
    in_the_store = election.dsn is None and not settings.stores  # of several none is the election's default
    if election.over_postgres and (in_the_store or election.dsn in [store.dsn for store in portable.values()]):
        sentence = (
            "expected an election that is not in a store with portability: etcd, Consul, ZooKeeper, Kubernetes, or "
            "election.dsn of a Postgres"
        )
        yield Broken("election.source" if election.dsn is None else "election.dsn", sentence, keys)


def _validated(settings: Settings, numbers: Sequence[int], keys: tuple[str, ...]) -> Iterator[Broken]:
    """Rule R15 rests on prepared transactions."""
    for number, route in zip(numbers, settings.route, strict=True):
        if not route.validated:
            continue
        held_by = [store_of(settings, role) for role in route.roles]
        if any(store is not None and store.portability for store in held_by):
            sentence = "expected false with portability: what waits for its proof is a prepared transaction"
            yield Broken(f"route.{number}.validate", sentence, keys)
