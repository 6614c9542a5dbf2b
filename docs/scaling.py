"""What a deployment of a given size asks of its elections, stores and gateways: arithmetic alone, no I/O.

``scaling.md`` says where each figure comes from, and shows :func:`table` of :data:`SCENES`; a test holds the two equal.
Rates are per second, sizes in bytes, times in seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import Final, Literal

KIB: Final = 1024
MIB: Final = 1024 * KIB

# -- measured (bench/README.md) -------------------------------------------------------------------------

AT_REST: Final = 61 * MIB
IDLE_ROLE: Final = 0.98 * KIB
LED_ROLE: Final = 2.4 * KIB
ELECTOR: Final = 20 * KIB
ROUNDS_IDLE: Final = 0.02 / 10_000
"""Of a core, for each role that nobody leads; of a role that is led: :data:`ROUNDS_LED`."""
ROUNDS_LED: Final = 0.09 / 10_000
SURVEY_ROW: Final = 0.28e-6
"""Seconds of Postgres' CPU for one row of the monitor's digest, once a second for each process (scaling.md)."""
FENCE_ROW: Final = 1.25 * KIB
"""On disk, with the room that a fence row keeps for its updates (scaling.md)."""

# -- read off the program ---------------------------------------------------------------------------------

SESSIONS: Final = 10
"""Of one process with one store: ``cli/doctor_postgres_checks.py``."""
CAMPAIGNS: Final = 256
"""Roles that one gateway campaigns for: ``config/settings.py``."""
MONITOR_PERIOD: Final = 1.0
JITTER: Final = 1.1
"""A retry period is stretched by up to 1.2."""
ROLES_A_READ: Final = {"etcd": 60, "postgres": 500}
LEADER_CALLS: Final = {"etcd": 2, "postgres": 1}
"""Requests of one renewal: in etcd a lease and the transaction that moves the key to it."""
STANDBY_CALLS: Final = {"etcd": 2, "postgres": 2}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one of each is taken to bear. Assumptions, not measured here; put in your own."""

    election_requests: float = 10_000.0
    store_sessions: int = 500
    monitor_cores: float = 1.0
    gateway_memory: float = 1024.0 * MIB
    rounds_cores: float = 0.5


@dataclass(frozen=True, slots=True)
class Scene:
    """``gateways`` of all regions serve ``roles``, both divided evenly over ``cells`` that share nothing but elections.

    A cell has one store in ``follow``, where applications lead; in ``campaign`` one in each of its ``regions``.
    ``led``: the part of the roles that somebody leads. ``forwarding``: roles of one gateway with writes under way to
    an upstream.
    """

    name: str
    gateways: int
    roles: int
    cells: int = 1
    elections: int = 1
    regions: int = 1
    mode: Literal["campaign", "follow"] = "follow"
    source: Literal["etcd", "postgres"] = "etcd"
    workers: int = 1
    led: float = 1.0
    forwarding: int = 0
    retry_period: float = 2.0
    lease_duration: float = 15.0
    limits: Limits = field(default_factory=Limits)

    @property
    def processes(self) -> int:
        """Of one gateway. With several workers their supervisor is one more, with sessions of its own."""
        return self.workers + 1 if self.workers > 1 else 1

    @property
    def cell_roles(self) -> int:
        return ceil(self.roles / self.cells)

    @property
    def cell_gateways(self) -> float:
        return self.gateways / self.cells

    @property
    def stores(self) -> int:
        return self.cells * (self.regions if self.mode == "campaign" else 1)

    @property
    def store_gateways(self) -> float:
        return self.gateways / self.stores

    # -- what the elections are asked ------------------------------------------------------------------

    @property
    def looks(self) -> float:
        """Reads of all gateways: every process looks at all its roles in each period, and the followers once more.

        However many requests ask about a role they share its reads, so that clients add none of these.
        """
        rounds = self.processes + (self.mode == "follow")
        return self.gateways * rounds * ceil(self.cell_roles / ROLES_A_READ[self.source]) / self.retry_period

    @property
    def renewals(self) -> float:
        """By whoever leads: a gateway's elector, or an application's."""
        return self.roles * self.led * LEADER_CALLS[self.source] / self.retry_period

    @property
    def standing_by(self) -> float:
        """Tries of the other gateways of a cell that campaign for the same roles."""
        if self.mode == "follow":
            return 0.0
        others = self.gateways * self.roles / self.cells - self.roles * self.led
        return max(0.0, others) * STANDBY_CALLS[self.source] / (self.retry_period * JITTER)

    @property
    def election_requests(self) -> float:
        """Of one election cluster."""
        return (self.looks + self.renewals + self.standing_by) / self.elections

    # -- what a store and a gateway bear -----------------------------------------------------------------

    @property
    def store_sessions(self) -> float:
        return self.store_gateways * self.processes * SESSIONS

    @property
    def monitor_cores(self) -> float:
        """Of a store's CPU, for the digest of its rows that each process asks for."""
        return self.store_gateways * self.processes * self.cell_roles * SURVEY_ROW / MONITOR_PERIOD

    @property
    def fence_bytes(self) -> float:
        return self.cell_roles * FENCE_ROW

    @property
    def mark_rows(self) -> float:
        """Heartbeats: marks rewritten a second in one store."""
        return self.store_gateways * self.processes * self.forwarding

    @property
    def gateway_memory(self) -> float:
        role = IDLE_ROLE + self.led * (LED_ROLE - IDLE_ROLE)
        electors = ELECTOR * self.cell_roles if self.mode == "campaign" else 0.0
        return self.processes * (AT_REST + role * self.cell_roles) + electors

    @property
    def rounds_cores(self) -> float:
        """Of a gateway's CPU, for its looks. Measured where it follows over a Postgres: half of that is one round."""
        role = ROUNDS_IDLE + self.led * (ROUNDS_LED - ROUNDS_IDLE)
        return (self.processes + (self.mode == "follow")) / 2 * role * self.cell_roles

    # -- what gives way ----------------------------------------------------------------------------------

    def loads(self) -> dict[str, float]:
        """Each load as a part of its limit, the heaviest first: above 1 it does not fit."""
        limits = self.limits
        found = {
            "election requests": self.election_requests / limits.election_requests,
            "store sessions": self.store_sessions / limits.store_sessions,
            "monitor's CPU in the store": self.monitor_cores / limits.monitor_cores,
            "gateway memory": self.gateway_memory / limits.gateway_memory,
            "rounds' CPU in the gateway": self.rounds_cores / limits.rounds_cores,
        }
        if self.mode == "campaign":
            found["roles that a gateway campaigns for"] = self.cell_roles / CAMPAIGNS
        return dict(sorted(found.items(), key=lambda load: -load[1]))

    @property
    def breaks_first(self) -> str:
        name, load = next(iter(self.loads().items()))
        return f"{name}, {load:,.2g}" if load < 10 else f"{name}, {load:,.0f}"


MILLION: Final = 1_000_000
SCENES: Final = (
    Scene("one gateway, 10,000 roles", 1, 10_000),
    Scene("1,000 gateways, a million roles, one store", 1_000, MILLION),
    Scene("… the same, nobody leading", 1_000, MILLION, led=0.0),
    Scene("… in 100 cells, one etcd", 1_000, MILLION, cells=100),
    Scene("… in 100 cells, 150 etcd", 1_000, MILLION, cells=100, elections=150, forwarding=100),
    Scene("… in 500 cells, 150 etcd", 1_000, MILLION, cells=500, elections=150, forwarding=100),
    Scene("… and leases ten times as long", 1_000, MILLION, cells=500, elections=15, forwarding=100,
          retry_period=20.0, lease_duration=150.0),
    Scene("1,000 gateways that campaign, two regions, 256 roles a cell", 1_000, 256 * 250, cells=250, elections=50,
          regions=2, mode="campaign"),
)  # fmt: skip


def table(scenes: tuple[Scene, ...] = SCENES) -> Iterator[str]:
    """The lines of a Markdown table, a scene in each."""
    yield (
        "| | election requests/s, a cluster (looks + renewals + standing by) | sessions, a store "
        "| monitor's cores, a store | fence rows on disk, a store | mark rows/s, a store "
        "| memory, a gateway | rounds' cores, a gateway "
        "| heaviest load ÷ its limit |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for scene in scenes:
        parts = " + ".join(
            f"{part / scene.elections:,.0f}" for part in (scene.looks, scene.renewals, scene.standing_by)
        )
        yield (
            f"| {scene.name} | {scene.election_requests:,.0f} ({parts}) | {scene.store_sessions:,.0f} "
            f"| {scene.monitor_cores:.3g} | {scene.fence_bytes / MIB:,.1f} MiB | {scene.mark_rows:,.0f} "
            f"| {scene.gateway_memory / MIB:,.0f} MiB | {scene.rounds_cores:.2g} | {scene.breaks_first} |"
        )


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in table())
