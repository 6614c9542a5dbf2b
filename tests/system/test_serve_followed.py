"""``fencegate serve`` behind a system that elects for itself: a real failover of Redis under real sentinels."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fencegate.testing.redis_sentinels import CLUSTER, RedisSentinels
from system.serving import Serving, until

pytestmark = pytest.mark.system

CONFIGURATION = """\
node = "gw-1"
region = "eu"
advertise = "http://127.0.0.1:1"
[store]
dsn = "{dsn}"
[election]
source = "redis-sentinel"
mode = "follow"
cluster = "{cluster}"
endpoints = [{endpoints}]
lease_duration = 6
renew_deadline = 4
retry_period = 0.5
margin = 0.5
[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"
"""


def opens_above(gateway: Serving, token: int) -> int:
    """Wait until a higher term is announced and may write; its token."""
    until("a higher term", lambda: gateway.discovered() > token)
    found = gateway.discovered()
    until("the fence at it", lambda: gateway.write(found).status == 201)
    return found


async def test_through_a_failover_the_old_term_is_refused_and_the_new_one_accepted_and_a_fall_closes(
    fresh_dsn: str,
    redis_sentinels: RedisSentinels,
    serve: Callable[..., Serving],
    configuration: Callable[[str], str],
) -> None:
    await redis_sentinels.until_whole()
    endpoints = ", ".join(f'"{endpoint}"' for endpoint in redis_sentinels.endpoints)
    text = CONFIGURATION.format(dsn=fresh_dsn, cluster=CLUSTER, endpoints=endpoints)
    gateway = serve("--migrate", "--config", configuration(text)).listens()
    old = opens_above(gateway, 0)

    primary = redis_sentinels.primary()
    redis_sentinels.kill(primary)
    await redis_sentinels.until_primary_is_not(primary)
    new = opens_above(gateway, old)

    late = gateway.write(old)
    assert (late.status, late.outcome) == (409, "stale_token")
    forged = gateway.write(new + 1000)
    assert (forged.status, forged.outcome) == (403, "token_not_issued")

    # An operator lets the sentinels monitor the primary anew: the epoch begins at 0.
    await redis_sentinels.revive(primary)
    await redis_sentinels.forget()
    (alarm, *_) = until("the alarm", lambda: gateway.facts_of("token_regressed"))
    assert (alarm["token"], alarm["max_token_seen"]) == (1, new)
    for token in (1, new):
        assert gateway.write(token).status in (409, 503), "neither the low term nor the one before may write"

    await redis_sentinels.fail_over()
    assert opens_above(gateway, new) > new
    entries = gateway.ask("GET", "/v1/entries").json["entries"]
    tokens = [entry["token"] for entry in entries]
    assert tokens == sorted(tokens)
    assert set(tokens) >= {old, new}
    assert gateway.stop() == 0
