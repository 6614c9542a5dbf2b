"""What a drill needs of the system that it plays on: an embedded set, or a running deployment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, Protocol

from fencegate.errors import FencegateError
from fencegate.fence import Entry
from fencegate.gameday.held_faults import Lift
from fencegate.gameday.history import Attempt
from fencegate.gameday.ledgers import Standing
from fencegate.gameday.scene import Tone
from fencegate.gameday.verify import Verdict

Kind = Literal["embedded", "target"]


class DrillFailed(FencegateError):
    """Something that the drill waits for did not happen, or must not go on. The message says what."""


class Tell(Protocol):
    def __call__(self, text: str, tone: Tone = "plain") -> None: ...


Until = Callable[[Callable[[], bool], float, str], Awaitable[None]]
"""Waits until something is so, for so many seconds at most; the text says what. Raises :class:`DrillFailed`."""


class Stage(Protocol):
    """The regions by name, how they stand by their stores' own word, and what may be done to them.

    ``called`` names the two regions of a scenario: the one that leads at the start is its ``primary``. ``origins`` are
    known once prepared. ``apart``: a decision must not go to both stores under one key. ``run`` begins every key.
    """

    @property
    def kind(self) -> Kind: ...

    @property
    def role(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def lease(self) -> float: ...

    @property
    def apart(self) -> bool: ...

    @property
    def run(self) -> str: ...

    @property
    def called(self) -> Mapping[str, str]: ...

    @property
    def origins(self) -> Mapping[str, str]: ...

    async def prepare(self, tell: Tell) -> None:
        """Everything that is needed to look at the stores. Raises :class:`DrillFailed` where it cannot begin."""

    async def begin(self, tell: Tell, until: Until, is_open: Callable[[str], bool]) -> None:
        """Until one region leads."""

    def jobs(self) -> Sequence[Coroutine[Any, Any, None]]:
        """What must go on in the background. One that raises ends the drill."""

    async def standing(self, region: str) -> Standing:
        """Raises :class:`fencegate.errors.Unavailable` where the store's word cannot be had."""

    async def rejections(self, region: str) -> Counter[str]:
        """What the region's gateways have refused, by reason."""

    def running(self, region: str) -> bool: ...

    def fork(self) -> str:
        """Where the stores part, if that shows already: a sentence, else ``""``."""

    async def answers(self, region: str) -> bool:
        """Whether its gateway answers."""

    async def strike(self, how: str, part: str) -> Lift: ...

    def hand_over(self, to: str, limit: float) -> Coroutine[Any, Any, str]:
        """Hands the role to region ``to``: ``""``, or why it was not done (asking again may help)."""

    def resign(self, region: str) -> Coroutine[Any, Any, bool]: ...

    async def make_standby(self, region: str) -> None: ...

    async def promote_standby(self, region: str) -> None: ...

    async def settle(self, limit: float) -> None:
        """Waits until copies are where they will be."""

    async def ledgers(self) -> dict[str, list[Entry]]: ...

    def judge(self, attempts: Sequence[Attempt], ledgers: Mapping[str, Sequence[Entry]], leader: str) -> Verdict:
        """What the checker makes of it, by what is known of copies between the stores."""

    async def restore(self, tell: Tell) -> str:
        """Leaves the system as it was found, as far as it outlives the drill; ``""``, or what is left to do."""
