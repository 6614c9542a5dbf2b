"""A running deployment: its ledgers page by page, and how it is looked at. The stage on real gateways: tests/system."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.gameday import target_stage
from fencegate.gameday.history import History
from fencegate.gameday.plain_http import Answer, NoAnswer
from fencegate.gameday.population import Names
from fencegate.gameday.scene import RegionScene, Scene
from fencegate.gameday.stage import DrillFailed
from fencegate.gameday.target_stage import TargetStage, read_page
from fencegate.gameday.watch import Watch
from fencegate.testing.virtual_time import run_in_virtual_time

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = (
    st.none()
    | st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
    | st.just('"body":{')
)
SPACED = st.sampled_from(["", " ", "\n\t"])


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1))
def test_a_caller_is_read_whatever_its_name(caller: str) -> None:
    entry = {"role": "r", "seq": 1, "token": 3, "recorded_at": "t", "hash": "h", "caller": caller, "body": {"n": 1}}
    [found], _ = read_page(orjson.dumps({"role": "r", "entries": [entry], "next_after": None}).decode(), "r")
    assert (found.caller, found.body) == (caller, b'{"n":1}')


@given(st.lists(st.tuples(JSON, KEYS, SPACED), max_size=4), st.none() | st.integers(1, 2**62))
def test_every_body_is_kept_as_it_is_written_since_the_chain_is_made_of_it(
    rows: list[tuple[object, str | None, str]], after: int | None
) -> None:
    bodies = [b"%b%b%b" % (space.encode(), orjson.dumps(body), space.encode()) for body, _, space in rows]
    entries = [
        {"role": "r", "seq": n, "token": 3, "recorded_at": "t", "hash": "h"}
        | ({} if key is None else {"idempotency_key": key})
        | {"body": orjson.Fragment(body)}
        for n, (body, (_, key, _)) in enumerate(zip(bodies, rows, strict=True), start=1)
    ]
    text = orjson.dumps({"role": "r", "entries": entries, "next_after": after}).decode()
    found, following = read_page(text, "r")
    assert [entry.body for entry in found] == bodies
    assert [entry.key for entry in found] == [key for _, key, _ in rows]
    assert [entry.seq for entry in found] == list(range(1, len(rows) + 1))
    assert following == after


# -- how a running deployment is looked at -------------------------------------------------------------


class Deployment:
    """A stand-in for admin listeners, which answer with what is so when they have waited for ``slow`` seconds.

    ``leads`` are the regions whose store is open for every role. What is in ``hung`` never answers.
    """

    def __init__(self) -> None:
        self.leads = {"eu"}
        self.hung: set[str] = set()
        self.slow: dict[str, float] = {}

    async def ask(self, method: str, url: str, *, limit: float = 3.0, body: bytes = b"", **_: Any) -> Answer:
        host = url.removeprefix("http://").partition(":")[0]
        if "/.well-known/" in url:
            return Answer(200, (), b"{}")
        try:
            async with asyncio.timeout(limit):
                await asyncio.sleep(3600 if host in self.hung else self.slow.get(host, 0.01))
        except TimeoutError as error:
            raise NoAnswer("time is up") from error
        if method == "POST":
            self.leads = {orjson.loads(body)["to"]}
            return Answer(200, (), b'{"outcome": "done"}')
        return Answer(200, (), orjson.dumps(self._document(host[:2])))

    def _document(self, region: str) -> dict[str, Any]:
        fence = {
            "open": region in self.leads,
            "max_token_seen": 7 if region == "eu" else 8,
            "sealed": 0 if region in self.leads else 7,
            "last_seq": 3,
        }
        role = {"role": "canary", "rehearsal": True, "path": "/v1/canary", "fence": {**fence, "incarnation": region}}
        return {
            "node": f"gw-{region}",
            "region": region,
            "advertise": f"https://{region}.example",
            "store": {"up": True, "reason": None},
            "timings": {"lease_duration": 4.0},
            "roles": [role, {**role, "role": "ledger", "rehearsal": False, "path": None}],
        }


class Looking:
    """A stage on the listeners of ``hosts`` and what watches it, for as long as it is entered."""

    def __init__(self, *hosts: str) -> None:
        self.stage = TargetStage([f"http://{host}:1" for host in hosts or ("eu", "dr")], None, "token")
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Looking:
        clock = asyncio.get_running_loop().time
        await self.stage.prepare(lambda text, tone="plain": None)
        self.scene = Scene(clock, {name: RegionScene(name) for name in self.stage.origins}, True)
        history = History()
        self.watch = Watch(self.stage, self.scene, history, Names(clock, "eu"))
        self._tasks = [asyncio.create_task(job) for job in (*self.watch.jobs(), *self.stage.jobs())]
        await asyncio.sleep(1.0)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        self.ended = await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
def deployment(monkeypatch: pytest.MonkeyPatch) -> Deployment:
    found = Deployment()
    monkeypatch.setattr(target_stage, "ask", found.ask)
    return found


def test_a_target_that_hangs_takes_no_other_region_out_of_sight(deployment: Deployment) -> None:
    async def story() -> None:
        async with Looking() as looking:
            deployment.hung = {"dr"}
            for _ in range(100):
                await asyncio.sleep(0.05)
                assert looking.scene.regions["eu"].open
                assert looking.stage.running("eu")
            assert not looking.stage.running("dr")

    run_in_virtual_time(story())


@pytest.mark.parametrize("moment", [0.2, 0.5, 0.8, 1.1])
@pytest.mark.parametrize("what", ["the new leader is slow", "the old leader is slow", "the old leader hangs"])
def test_a_leader_whose_answer_is_from_before_the_handoff_is_no_second_leader(
    deployment: Deployment, what: str, moment: float
) -> None:
    async def story() -> None:
        async with Looking() as looking:
            deployment.slow = {"dr" if "new" in what else "eu": 1.0} if "slow" in what else {}
            await asyncio.sleep(4.0 + moment)
            deployment.hung = {"eu"} if "hangs" in what else set()
            deployment.leads = {"dr"}
            await asyncio.sleep(4.0)
            assert looking.scene.regions["dr"].open
            assert looking.scene.most_leaders == 1
        assert all(isinstance(one, asyncio.CancelledError) for one in looking.ended), looking.ended

    run_in_virtual_time(story())


def test_when_a_store_sealed_its_term_is_known(deployment: Deployment) -> None:
    async def story() -> None:
        async with Looking() as looking:
            at = asyncio.get_running_loop().time()
            deployment.leads = set()
            await asyncio.sleep(2.0)
            [seal] = [one for one in looking.watch.seals if one.region == "eu"]
            assert (seal.token, 0 < seal.at - at < 1) == (7, True)

    run_in_virtual_time(story())


def test_two_leaders_that_both_say_so_again_are_two(deployment: Deployment) -> None:
    async def story() -> None:
        async with Looking() as looking:
            deployment.leads = {"eu", "dr"}
            await asyncio.sleep(4.0)
            assert looking.scene.most_leaders == 2
        failed = [one for one in looking.ended if isinstance(one, DrillFailed)]
        assert [str(one) for one in failed] == ["stopped: leader_count of ledger is 2"]

    run_in_virtual_time(story())


def test_a_canary_is_handed_back_while_a_target_hangs(deployment: Deployment) -> None:
    async def story() -> None:
        async with Looking("eu", "eu-2", "dr") as looking:
            assert await looking.stage.hand_over("dr", 10.0) == ""
        assert deployment.leads == {"dr"}
        deployment.hung = {"eu-2"}
        assert await looking.stage.restore(lambda text, tone="plain": None) == ""
        assert deployment.leads == {"eu"}

    run_in_virtual_time(story())
