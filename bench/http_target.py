"""The ``http`` target, small bodies: fenced ÷ unfenced through the same gateway, and ÷ nginx ``proxy_pass``.

One process each, and two: a second one of nginx finds no core that is idle here, one of ours does.
"""

from __future__ import annotations

from bench.ledger_writes import ROUTE
from bench.load import http
from bench.rounds import Answer, answers, measured, paired
from bench.servers import gateway, nginx, postgres


def run(rounds: int, seconds: float) -> list[Answer]:
    with nginx() as front, nginx(workers=2) as two_fronts, postgres() as database:
        route = f'[[route]]\npath = "/web/*"\nrole = "ledger"\ntarget = "http://{front.upstream}"\n'
        with gateway(database, ROUTE + route) as ours:
            pids = {"gateway": ours.pid, "postgres": database.pid}
            fenced, proxied = paired(
                rounds,
                lambda: measured(
                    lambda: http(ours.address, seconds, 64, path="/web/x", token=ours.token, keyed=False), **pids
                ),
                lambda: measured(
                    lambda: http(front.proxy, seconds, 64, path="/web/x", keyed=False), nginx=front.proxy_pid
                ),
            )
            again, unfenced = paired(
                rounds,
                lambda: measured(
                    lambda: http(ours.address, seconds, 64, path="/web/x", token=ours.token, keyed=False), **pids
                ),
                lambda: measured(
                    lambda: http(ours.address, seconds, 64, path="/web/x", method="GET", keyed=False, body=""), **pids
                ),
            )
            with gateway(database, ROUTE + route, node="gw-2", workers=2) as two:
                by_two, two_proxied = paired(
                    rounds,
                    lambda: measured(
                        lambda: http(two.address, seconds, 64, path="/web/x", token=two.token, keyed=False),
                        gateway=two.pid,
                        postgres=database.pid,
                    ),
                    lambda: measured(
                        lambda: http(two_fronts.proxy, seconds, 64, path="/web/x", keyed=False),
                        nginx=two_fronts.proxy_pid,
                    ),
                )
    return [
        answers("http target, fenced ÷ nginx proxy_pass, unfenced", "≥ 0.7", fenced, proxied),
        answers("the same with two workers ÷ nginx with two", "≥ 0.7", by_two, two_proxied),
        answers("http target, fenced ÷ unfenced through our own gateway", "≥ 0.95", again, unfenced),
    ]
