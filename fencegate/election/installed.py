"""Elections that other packages bring along: the entry-point group ``fencegate.election``.

A package declares, in its ``pyproject.toml``::

    [project.entry-points."fencegate.election"]
    my-quorum = "my_package.election:open_election"

and ``open_election`` takes :class:`ElectionOptions` and returns a :class:`~fencegate.lease.LeadershipSource`, which can
be followed, or an :class:`~fencegate.lease.ElectionBackend`, which can be campaigned in as well. It is chosen with
``election.source = "installed:my-quorum"``. It should connect to nothing yet, and raise ``ValueError`` for options
that it cannot use. Hold it to the contracts in ``fencegate.testing.election_suite`` and ``followed_suite``.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Literal

from fencegate.lease import ElectionBackend, LeadershipSource, LeaseTimings

GROUP: Final = "fencegate.election"


class NotInstalled(Exception):
    """No election of that name can be had; the text says which can."""


@dataclass(frozen=True, slots=True)
class ElectionOptions:
    """What the table ``[election]`` says, for an election of another package. New fields will have defaults.

    ``password`` is what ``password_file`` holds. ``dsn`` is the store's where the table names none.
    """

    timings: LeaseTimings
    mode: Literal["campaign", "follow"]
    endpoints: tuple[str, ...] = ()
    dsn: str = ""
    prefix: str = "/fencegate"
    cluster: str | None = None
    username: str | None = None
    password: str | None = None
    token_file: str | None = None
    tls: ssl.SSLContext | None = None


def installed_names() -> list[str]:
    """The elections of other packages, by name."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def open_installed(name: str, options: ElectionOptions) -> LeadershipSource:
    """The election that a package declares as ``name``.

    Raises :class:`NotInstalled` where none does, more than one does, it cannot be imported or is no election; and
    what its factory raises.
    """
    election: Any = _factory(name)(options)
    if not isinstance(election, LeadershipSource):
        raise NotInstalled(f"{name} made a {type(election).__name__}, which is no LeadershipSource")
    if options.mode == "campaign" and not isinstance(election, ElectionBackend):
        raise NotInstalled(f'{name} can only be followed: set election.mode = "follow"')
    return election


def _factory(name: str) -> Any:
    points: list[EntryPoint] = list(entry_points(group=GROUP, name=name))
    values = {point.value for point in points}
    if not points:
        found = ", ".join(installed_names()) or "none"
        raise NotInstalled(f"no package declares the election {name!r} in the group {GROUP}; declared: {found}")
    if len(values) > 1:
        raise NotInstalled(f"several packages declare the election {name!r}: {', '.join(sorted(values))}")
    try:
        return points[0].load()
    except (ImportError, AttributeError) as error:
        raise NotInstalled(f"{name!r} ({points[0].value}) cannot be imported: {error}") from error
