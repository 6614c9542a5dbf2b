"""The pure pieces of ``fencegate serve``; the process itself is tested in tests/system/."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fencegate.cli import serve
from fencegate.cli.main import main
from fencegate.cli.serve import Example, embedded_defaults, with_a_port
from fencegate.config import parse
from fencegate.config.values import split_address
from fencegate.observations import LeadershipGained, StoreCameUp


def test_the_defaults_of_embedded_are_a_whole_configuration() -> None:
    found = parse(defaults=embedded_defaults("127.0.0.1:8080"), embedded=True)
    assert (found.node, found.region, found.advertise) == ("local", "local", "http://127.0.0.1:8080")
    assert found.roles == ["ledger"]
    assert found.election.source == "postgres"


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_free_port_is_chosen_only_where_one_is_asked_for(host: str) -> None:
    assert with_a_port(f"{host}:8080") == f"{host}:8080"
    chosen = with_a_port(f"{host}:0")
    assert chosen.startswith(f"{host}:")
    assert split_address(chosen)[1] > 0


def test_the_example_is_shown_once_with_the_token_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    example = Example(parse(defaults=embedded_defaults("127.0.0.1:8080"), embedded=True))
    example(StoreCameUp("x"))
    example(LeadershipGained("not-ours", 6))
    assert capsys.readouterr().out == ""
    example(LeadershipGained("ledger", 7))
    out = capsys.readouterr().out
    assert "curl -i http://127.0.0.1:8080/v1/entries -H 'X-Fencing-Token: 7'" in out
    example(LeadershipGained("ledger", 8))
    assert capsys.readouterr().out == ""


def test_the_example_claims_nothing_that_the_configuration_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    grants = (
        (Path(__file__).parents[2] / "docs" / "grants.md").read_text().partition("```toml\n")[2].partition("```")[0]
    )
    Example(parse(file=("grants.md", grants)))(LeadershipGained("ledger", 7))
    out = capsys.readouterr().out
    assert "that is taken" not in out
    assert "needs a client certificate and a caller who may write there and the grant that discovery gives" in out

    route = '[[route]]\npath = "/v1/entries"\nrole = "ledger"\ntarget = "ledger"\nidempotency = "required"\n'
    keyed = parse(file=("keyed.toml", route), defaults=embedded_defaults("127.0.0.1:8080"), embedded=True)
    Example(keyed)(LeadershipGained("ledger", 7))
    assert "-H 'Idempotency-Key: first' -H 'Content-Type" in capsys.readouterr().out


def test_who_configures_nothing_is_told_of_the_embedded_gateway(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FENCEGATE_CONFIG", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["serve"])
    assert ended.value.code == 78
    assert capsys.readouterr().err.rstrip().endswith("; or try it with none: --embedded DIR")


async def test_an_embedded_server_for_which_no_process_could_be_started_is_started_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Killed:
        running = False
        tries = 0

        async def start(self) -> None:
            self.tries += 1
            if self.tries == 1:
                raise OSError(24, "Too many open files")
            self.running = True

    server: Any = Killed()
    monkeypatch.setattr(serve, "WATCH_PERIOD", 0.0)
    watch = asyncio.create_task(serve._keep_running(server))
    for _ in range(10):
        await asyncio.sleep(0)
    watch.cancel()
    await asyncio.wait([watch])
    assert server.running
    assert watch.cancelled()
