"""What a spectator of the drill sees at one moment: plain values that the drill fills in and the terminal draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Tone = Literal["plain", "good", "bad", "act"]
TAIL_SECONDS = 48
"""How many seconds of the tail are shown, the latest ones."""


@dataclass(frozen=True, slots=True)
class Happening:
    """One line of the timeline: seconds since the start, and a plain sentence."""

    at: float
    text: str
    tone: Tone = "plain"


@dataclass(slots=True)
class RegionScene:
    """One region. ``open`` is its store's own word; ``rejections`` are the gateway's own counters."""

    name: str
    process: Literal["starting", "running", "killed"] = "starting"
    open: bool = False
    max_token: int = 0
    entries: int = 0
    accepted: int = 0
    rejections: Counter[str] = field(default_factory=Counter)

    @property
    def token(self) -> int:
        """The token of the term that is open here, 0 for none."""
        return self.max_token if self.open else 0


@dataclass(frozen=True, slots=True)
class Countdown:
    """What is waited for, and until when at most (on the scene's clock)."""

    what: str
    until: float


@dataclass(slots=True)
class Scene:
    """The whole stage. ``wrongly`` counts writes that a region without a term has accepted (fence off only).

    ``tail`` holds the stale writes refused in each second since they became stale, the current one last.
    """

    clock: Callable[[], float]
    regions: dict[str, RegionScene]
    fenced: bool
    title: str = "Drill 26"
    act: str = "Starting the servers"
    started: float = 0.0
    countdown: Countdown | None = None
    step: int = 0
    steps: int = 0
    stale_left: int = 0
    stale_total: int = 0
    stale_refused: int = 0
    elsewhere: str = "dr"
    wrongly: int = 0
    refusals_per_second: float = 0.0
    tail: list[int] = field(default_factory=list)
    most_leaders: int = 0
    fork: str = ""
    timeline: list[Happening] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def elapsed(self) -> float:
        return self.clock() - self.started

    @property
    def leaders(self) -> int:
        """``leader_count`` by the stores' own word."""
        return sum(region.open for region in self.regions.values())

    def tell(self, text: str, tone: Tone = "plain") -> None:
        self.timeline.append(Happening(self.elapsed, text, tone))
