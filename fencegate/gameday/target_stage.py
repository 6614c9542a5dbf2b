"""A running deployment as a drill's stage: a canary role is handed over and written to, and nothing else is touched.

Everything is asked for over HTTP: the admin listeners say how the stores stand, the gateways show their ledgers. The
drill stops where a real role's ``leader_count`` leaves 1, and hands the canary back whatever happens.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from json import JSONDecoder
from typing import Any, Final
from urllib.parse import quote

from fencegate.errors import Unavailable
from fencegate.fence import Entry
from fencegate.gameday import target_view
from fencegate.gameday.embedded_stage import is_pending, refusal
from fencegate.gameday.held_faults import Lift
from fencegate.gameday.history import Attempt
from fencegate.gameday.ledgers import Standing
from fencegate.gameday.plain_http import Answer, NoAnswer, NotSent, ask
from fencegate.gameday.stage import DrillFailed, Kind, Tell, Until
from fencegate.gameday.target_view import Canary, Document
from fencegate.gameday.verify import Verdict, verify, verify_apart

_EVERY: Final = 0.25
_FRESH: Final = 1.5
_ANSWER_LIMIT: Final = 3.0
_BLIND_LIMIT: Final = 6.0
"""Seconds in which a region may be out of sight before the drill stops."""
_PAGE: Final = 1000
_RESTORE_LIMIT: Final = 60.0


class TargetStage:
    """``targets`` are admin listeners, ``token`` the operators' bearer token, ``role`` the canary where it is named."""

    kind: Kind = "target"
    apart = True

    def __init__(self, targets: Sequence[str], role: str | None, token: str | None) -> None:
        self._targets = [target.rstrip("/") if "://" in target else f"http://{target}" for target in targets]
        self._wanted, self._token = role, token
        self._clock = asyncio.get_running_loop().time
        self._documents: dict[str, Document] = {}
        self._asked_at: dict[str, float] = {}
        self._seen: dict[str, float] = {}
        self._news = asyncio.Event()
        self._canary: Canary | None = None
        self._before: dict[str, int] = {}
        self._watched: dict[str, int] = {}
        self._moved = False
        self._under_way: asyncio.Future[Answer] | None = None
        self._unsure_until = 0.0
        """Until then a handoff whose end we were not told may still be made."""
        self.run = f"gameday-{secrets.token_hex(4)}-"

    @property
    def role(self) -> str:
        return self._known.role

    @property
    def path(self) -> str:
        return self._known.path

    @property
    def lease(self) -> float:
        return self._known.lease

    @property
    def called(self) -> Mapping[str, str]:
        found = self._canary
        return {} if found is None else {"primary": found.leader, "dr": found.other}

    @property
    def origins(self) -> Mapping[str, str]:
        return self._known.origins

    # -- from start to end ------------------------------------------------------------------------

    async def prepare(self, tell: Tell) -> None:
        if self._token is None:
            raise DrillFailed("a rehearsal hands the canary over: name the operators' token by --token-file")
        answers = await asyncio.gather(*map(self._look_at, self._targets))
        if faults := [fault for fault in answers if fault]:
            raise DrillFailed(faults[0])
        found = list(self._documents.values())
        try:
            self._canary = target_view.canary(found, self._wanted)
        except ValueError as error:
            raise DrillFailed(str(error)) from None
        for region, origin in self.origins.items():
            await self._reaches(region, origin)
            self._before[region] = target_view.standing(found, region, self.role).last_seq
        counts = target_view.leader_counts(found)
        self._watched = {role: count for role, count in counts.items() if count == 1}
        where = ", ".join(self.origins.values())
        tell(f"rehearsing with {self.role}, whose leader is {self._known.leader}, at {where}")
        if self._watched:
            tell(f"to be left alone, or all stops: {', '.join(self._watched)} with one leader each")
        if idle := [role for role in counts if role not in self._watched]:
            tell(f"without a leader already, and not watched: {', '.join(idle)}")

    async def _reaches(self, region: str, origin: str) -> None:
        try:
            answer = await ask("GET", f"{origin}/.well-known/fencegate/leader/{quote(self.role)}", limit=_ANSWER_LIMIT)
        except (NotSent, NoAnswer) as error:
            raise DrillFailed(f"{region} advertises {origin}, which cannot be reached from here: {error}") from None
        if answer.status not in (200, 503):
            raise DrillFailed(f"{region} advertises {origin}, which answers {answer.status}: is that its gateway?")

    async def begin(self, tell: Tell, until: Until, is_open: Callable[[str], bool]) -> None:
        await until(lambda: is_open(self._known.leader), 10, f"{self._known.leader} to be seen leading")

    def jobs(self) -> Sequence[Coroutine[Any, Any, None]]:
        return [*map(self._keep_looking_at, self._targets), self._keep_judging()]

    async def settle(self, limit: float) -> None:
        """Copies between the regions' databases, if there are any, get a moment."""
        await asyncio.sleep(min(limit, 2.0))

    async def restore(self, tell: Tell) -> str:
        """Hands the canary back to the region that led at first; ``""``, or why that was not possible."""
        if not self._moved:
            return ""
        if self._under_way is not None and not self._under_way.done():
            # The gateway carries it out although we have gone: only behind its end can it be taken back.
            tell(f"a handoff of {self.role} is under way; its end is waited for")
            with suppress(NotSent, NoAnswer):
                await self._ended(self._under_way)
        looking = [asyncio.ensure_future(self._keep_looking_at(target)) for target in self._targets]
        try:
            return await self._hand_back(tell)
        finally:
            for one in looking:
                one.cancel()
            await asyncio.gather(*looking, return_exceptions=True)

    async def _hand_back(self, tell: Tell) -> str:
        said, home, since = "", self._known.leader, self._clock()
        until = max(since, self._unsure_until) + _RESTORE_LIMIT
        while self._clock() < until:
            leading = self._leading(since)
            if leading == home and self._clock() >= self._unsure_until:
                self._moved = False
                tell(f"{home} leads {self.role}, as it was found", "good")
                return ""
            if leading not in ("", home):
                if (refused := await self._asked_back(leading, home)) != said:
                    said = refused
                    tell(f"handing {self.role} back to {home}{': ' * bool(said)}{said}")
                since = self._clock()
            await asyncio.sleep(_EVERY)
        self._moved = False
        command = f"fencegate handoff {self.role} --to {home}"
        tell(f"{self.role} could not be handed back to {home}; do that by hand: {command}", "bad")
        return f"{self.role} could not be handed back to {home} ({said or 'nobody leads it'}): {command}"

    async def _asked_back(self, leading: str, home: str) -> str:
        try:
            return await self._asked(leading, home, 10.0)
        except DrillFailed as error:
            return str(error)

    # -- looking ----------------------------------------------------------------------------------

    async def _keep_looking_at(self, target: str) -> None:
        """Each target by itself: one that hangs makes no other's word old."""
        while True:
            await self._look_at(target)
            await asyncio.sleep(_EVERY)

    async def _look_at(self, target: str) -> str:
        """Asks once; ``""``, or why there is no answer as it should be."""
        asked = self._clock()
        found = await self._roles(target)
        if isinstance(found, str):
            return found
        self._documents[target], self._asked_at[target], self._seen[target] = found, asked, self._clock()
        self._news.set()
        self._news = asyncio.Event()
        return ""

    async def _keep_judging(self) -> None:
        while True:
            await asyncio.sleep(_EVERY)
            if self._wrong():
                # Two stores are not looked at in one instant: only what they say again, asked anew, is so.
                since = self._clock()
                await self._told(self.origins, since)
                if wrong := self._wrong(since):
                    raise DrillFailed(f"stopped: {wrong[0]}")

    def _wrong(self, since: float = 0.0) -> list[str]:
        now = self._clock()
        blind = [r for r in self.origins if now - max(self._ages(r), default=0.0) > _BLIND_LIMIT]
        if blind:
            return [f"no gateway of {region} has answered for {_BLIND_LIMIT:g} s" for region in blind]
        documents = self._fresh(since)
        seen = all(target_view.sees_store(documents, region) for region in self.origins)
        return list(target_view.strayed(self._watched, target_view.leader_counts(documents), all_seen=seen))

    async def _told(self, regions: Iterable[str], since: float) -> None:
        """Until a gateway of each region has been asked after ``since`` and has answered, or its time for that ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_LIMIT + _EVERY):
                while not set(regions) <= set(target_view.by_region(self._fresh(since))):
                    await self._news.wait()

    async def _roles(self, target: str) -> Document | str:
        try:
            answer = await ask("GET", f"{target}/-/roles", headers=self._bearer, limit=_ANSWER_LIMIT)
        except (NotSent, NoAnswer) as error:
            return f"no answer from the admin listener at {target}: {error}"
        try:
            document = json.loads(answer.body)
        except ValueError:
            document = None
        if answer.status != 200 or not isinstance(document, dict) or "roles" not in document:
            return f"{target} answers {answer.status}: is that the admin listener of a fencegate, and the token right?"
        return document

    @property
    def _bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"}

    def _fresh(self, since: float = 0.0) -> list[Document]:
        """What was told a moment ago, in answer to what was asked after ``since``."""
        now = self._clock()
        return [
            found
            for target, found in self._documents.items()
            if now - self._seen[target] <= _FRESH and self._asked_at[target] >= since
        ]

    def _ages(self, region: str) -> list[float]:
        return [self._seen[target] for target, found in self._documents.items() if found.get("region") == region]

    def _leading(self, since: float = 0.0) -> str:
        return next(iter(self._opened(self._fresh(since))), "")

    def _opened(self, documents: Sequence[Document]) -> list[str]:
        return [region for region in self.origins if target_view.standing(documents, region, self.role).open]

    async def standing(self, region: str) -> Standing:
        documents = self._fresh()
        if len(self._opened(documents)) > 1:
            # One of them may have closed before the other opened: only what it says again, asked anew, is so.
            since = self._clock()
            await self._told([region], since)
            documents = self._fresh(since)
        if not target_view.sees_store(documents, region):
            raise Unavailable(f"no gateway of {region} has told of its store for {_FRESH:g} s")
        return target_view.standing(documents, region, self.role)

    async def rejections(self, region: str) -> Counter[str]:
        return target_view.rejections(list(self._documents.values()), region, self.role)

    def running(self, region: str) -> bool:
        return region in target_view.by_region(self._fresh())

    async def answers(self, region: str) -> bool:
        return self.running(region)

    def fork(self) -> str:
        return ""

    # -- doing ------------------------------------------------------------------------------------

    async def hand_over(self, to: str, limit: float) -> str:
        leading = self._leading()
        if not leading:
            return "nobody is seen leading"
        return "" if leading == to else await self._asked(leading, to, limit)

    async def _asked(self, region: str, to: str, limit: float) -> str:
        """Asks the region's gateways in turn for the one that leads. Raises :class:`DrillFailed` where none may."""
        said = ""
        for target, document in list(self._documents.items()):
            if document.get("region") == region:
                self._moved = True
                said = await self._handoff(target, to, limit)
                if not said:
                    return ""
        return said

    async def _handoff(self, target: str, to: str, limit: float) -> str:
        body = json.dumps({"to": to, "limit": limit, "rehearsal": True}).encode()
        headers = {**self._bearer, "Content-Type": "application/json"}
        url = f"{target}/-/roles/{quote(self.role)}/handoff"
        longest = limit + 2 * self.lease + 15
        self._unsure_until = self._clock() + longest
        work = asyncio.ensure_future(ask("POST", url, headers=headers, body=body, limit=longest))
        self._under_way = work
        try:
            answer = await self._ended(work)
        except (NotSent, NoAnswer) as error:
            return str(error)
        if answer.status in (401, 403, 404):
            raise DrillFailed(f"{target} refuses the handoff: {refusal(answer.body)}")
        return refusal(answer.body)

    async def _ended(self, work: asyncio.Future[Answer]) -> Answer:
        """The answer to a handoff, which goes on if we are cut short. Then, or where no end is told, we are unsure."""
        try:
            answer = await asyncio.shield(work)
        except NotSent:
            self._unsure_until = 0.0
            raise
        if not is_pending(answer.body):
            self._unsure_until = 0.0
        return answer

    async def strike(self, how: str, part: str) -> Lift:
        raise DrillFailed("a running deployment is not broken on purpose")

    async def resign(self, region: str) -> bool:
        raise DrillFailed("a running deployment is handed over, not asked to resign")

    async def make_standby(self, region: str) -> None:
        raise DrillFailed("a running deployment's standbys are its own")

    async def promote_standby(self, region: str) -> None:
        raise DrillFailed("a running deployment's standbys are its own")

    # -- judging ----------------------------------------------------------------------------------

    async def ledgers(self) -> dict[str, list[Entry]]:
        return {region: await self._ledger(region, origin) for region, origin in self.origins.items()}

    async def _ledger(self, region: str, origin: str) -> list[Entry]:
        found: list[Entry] = []
        after: int | None = 0
        while after is not None:
            url = f"{origin}{self.path}?after={after}&limit={_PAGE}"
            try:
                answer = await ask("GET", url, limit=10 * _ANSWER_LIMIT)
            except (NotSent, NoAnswer) as error:
                raise DrillFailed(f"the ledger of {region} cannot be read: {error}") from None
            if answer.status != 200:
                raise DrillFailed(f"the ledger of {region} cannot be read: {url} answers {answer.status}")
            entries, after = read_page(answer.body.decode("utf-8"), self.role)
            found += entries
        return found

    def judge(self, attempts: Sequence[Attempt], ledgers: Mapping[str, Sequence[Entry]], leader: str) -> Verdict:
        """As one ledger that is copied, where an acknowledged write is in both stores; else as two."""
        told = {(a.seq, a.hash) for a in attempts if a.answered == "accepted"}
        places = [{(e.seq, e.hash) for e in entries} & told for entries in ledgers.values()]
        if set.intersection(*places):
            since = max(self._before.values())
            return verify(attempts, ledgers, role=self.role, leader=leader, since=since)
        return verify_apart(attempts, ledgers, role=self.role, since=self._before)

    @property
    def _known(self) -> Canary:
        assert self._canary is not None, "prepare it first"
        return self._canary


def read_page(text: str, role: str) -> tuple[list[Entry], int | None]:
    """The entries of one page of the built-in ledger, and after which the next one begins, ``None`` for no more.

    A body is kept as it is written there: the hash chain is made of its text.
    """
    document = json.loads(text)
    decoder, entries, at = JSONDecoder(), [], text.index("[") + 1
    for one in document["entries"]:
        at = text.index("{", at)
        body = text.index('"body":', at) + len('"body":')
        _, end = decoder.raw_decode(text, at)
        raw, key = text[body : end - 1].encode(), one.get("idempotency_key")
        entries.append(
            Entry(role, one["seq"], one["token"], one["recorded_at"], raw, one["hash"], key, one.get("caller"))
        )
        at = end
    return entries, document["next_after"]
