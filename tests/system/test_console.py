"""The console in a real Chromium, before two real regions: what is shown is what is so, through a failover.

``FENCEGATE_SCREENSHOTS=FOLDER`` keeps a picture of each state.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.embedded.postgres import EmbeddedPostgres
from system.serving import Serving, ask, until

pytestmark = pytest.mark.system

ACT, READ = "act-token-of-the-operators", "read-token-of-the-operators"
Regions = tuple[Serving, Serving, EmbeddedPostgres]
LIMIT = 30_000  # milliseconds
expect.set_options(timeout=LIMIT)
PICTURES = os.environ.get("FENCEGATE_SCREENSHOTS")
QUIET = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


def kept(page: Page, name: str) -> None:
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / f"{name}.png")


@pytest.fixture
def regions(
    serve: Callable[..., Serving],
    etcd: EmbeddedEtcd,
    fresh_prefix: str,
    fresh_dsn: str,
    make_postgres: Callable[..., EmbeddedPostgres],
    unused_ports: list[int],
    tmp_path: Path,
) -> Regions:
    """eu, which leads, and dr with its store; each shows the other."""
    other = make_postgres(port=0)
    other.start_sync()
    (tmp_path / "act").write_text(ACT)
    (tmp_path / "read").write_text(READ)
    started = []
    for region, dsn, own, peer in (
        ("eu", fresh_dsn, unused_ports[0], unused_ports[1]),
        ("dr", other.dsn, unused_ports[1], unused_ports[0]),
    ):
        path = tmp_path / f"{region}.toml"
        path.write_text(
            f'node = "gw-{region}"\nregion = "{region}"\nadvertise = "https://{region}.example"\n'
            f'[store]\ndsn = "{dsn}"\n'
            f'[election]\nsource = "etcd"\nendpoints = {etcd.endpoints}\nprefix = "{fresh_prefix.rstrip("/")}"\n'
            "lease_duration = 3\nrenew_deadline = 2\nretry_period = 0.4\nmargin = 0.5\n"
            f'[admin]\ntoken_file = "{tmp_path / "act"}"\nread_token_file = "{tmp_path / "read"}"\n'
            f'[console]\npeers = ["http://127.0.0.1:{peer}"]\ntoken_file = "{tmp_path / "read"}"\n'
            '[[route]]\npath = "/v1/entries"\nrole = "ledger"\ntarget = "ledger"\n'
        )
        started.append(serve("--config", str(path), "--migrate", "--admin", f"127.0.0.1:{own}").listens())
        if region == "eu":
            started[0].leads()
    return started[0], started[1], other


@pytest.fixture
def browser(regions: Regions) -> Iterator[Browser]:
    """After the regions, and gone before them: while it runs, nothing else may run an event loop in this thread."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=QUIET.split())
        yield started
        started.close()


@pytest.fixture
def look(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a console; fails in the end if the page complained of anything, its own policy included."""
    complaints: list[str] = []
    contexts = []

    def open_it(address: str, **options: object) -> Page:
        context = browser.new_context(
            http_credentials={"username": "operator", "password": READ},
            viewport={"width": 1100, "height": 1250},
            **options,
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"http://{address}/-/console")
        return page

    yield open_it
    for context in contexts:
        context.close()
    # A refused action shows up as a resource that failed to load; everything else is a fault of the page.
    assert not [text for text in complaints if "Failed to load resource" not in text]


@pytest.mark.timeout(180)
def test_what_is_shown_is_what_is_so_through_a_failover(regions: Regions, look: Callable[..., Page]) -> None:
    eu, dr, store = regions
    token = eu.discovered()
    page = look(dr.admin)
    expect(page.locator(".verdict")).to_contain_text(f"led by gw-eu in eu, token {token}", timeout=LIMIT)
    expect(page.locator(".chain li.holds")).to_have_count(5, timeout=LIMIT)
    assert eu.write(token).status == 201
    assert eu.write(token - 1).outcome in ("stale_token", "token_malformed")
    assert dr.write(token).outcome == "not_leader"
    expect(page.locator("#figures-0")).to_contain_text("not_leader", timeout=LIMIT)
    expect(page.locator("#believers-0")).to_contain_text("campaigning")
    kept(page, "one-leader")

    store.freeze()  # so that nobody can succeed
    eu.signal(signal.SIGKILL)
    expect(page.locator(".verdict")).to_contain_text("cannot be seen", timeout=LIMIT)
    expect(page.locator(".chain li.fails")).to_have_count(1, timeout=LIMIT)
    expect(page.locator(".chain li.moot").first).to_be_visible()
    kept(page, "no-leader")

    store.thaw()
    new = dr.leads(30)
    expect(page.locator(".verdict")).to_contain_text(f"led by gw-dr in dr, token {new}", timeout=LIMIT)
    expect(page.locator("#events")).to_contain_text(f"leads ledger under token {new}", timeout=LIMIT)


@pytest.mark.timeout(180)
def test_a_drain_and_a_handoff_need_the_roles_name_and_the_token_and_tell_what_became_of_them(
    regions: Regions, look: Callable[..., Page]
) -> None:
    eu, dr, _ = regions
    token = eu.discovered()
    page = look(eu.admin, color_scheme="dark")
    until("both stand", lambda: page.locator("#believers-0").inner_text().count("campaigning") == 1)
    page.get_by_role("link", name="Hand over, drain or seal").click()
    act(page, "Drain", "lodger", ACT)
    expect(page.locator("main")).to_contain_text("To confirm, ledger has to be typed")
    act(page, "Drain", "ledger", "wrong-token-of-nobody")
    expect(page.locator("main")).to_contain_text("not the token for actions")
    assert not eu.facts_of("drain_began")

    act(page, "Drain", "ledger", ACT)
    expect(page.locator("main")).to_contain_text("✓ drained", timeout=LIMIT)
    assert eu.write(token).outcome == "draining"
    page.get_by_role("link", name="To the picture").click()
    expect(page.locator("#notices-0")).to_contain_text("DRAINING at gw-eu in eu", timeout=LIMIT)
    kept(page, "draining-dark")
    page.get_by_role("link", name="Hand over, drain or seal").click()
    act(page, "End the drain", "ledger", ACT)
    expect(page.locator("main")).to_contain_text("✓ resumed", timeout=LIMIT)
    assert eu.write(token).status == 201

    act(page, "Hand over", "ledger", ACT)
    expect(page.locator("main")).to_contain_text("✓ done", timeout=LIMIT)
    dr.leads()
    page.get_by_role("link", name="To the picture").click()
    expect(page.locator(".verdict")).to_contain_text("led by gw-dr in dr", timeout=LIMIT)


def act(page: Page, title: str, typed: str, secret: str) -> None:
    """Fill the form of an action and send it; from the page that an earlier one ended on, too."""
    if page.get_by_role("link", name="to the actions").is_visible():
        page.get_by_role("link", name="to the actions").click()
    form = page.get_by_role("form", name=title, exact=True)
    form.get_by_label("To confirm").fill(typed)
    form.get_by_label("Token for actions").fill(secret)
    form.get_by_role("button").click()


@pytest.mark.timeout(120)
def test_a_seal_on_the_page_ends_the_term_and_the_other_region_opens(
    regions: Regions, look: Callable[..., Page]
) -> None:
    eu, dr, _ = regions
    token = eu.discovered()
    page = look(eu.admin, java_script_enabled=False)
    page.get_by_role("link", name="Hand over, drain or seal").click()
    act(page, f"Seal term {token}", f"ledger {token}", ACT)
    expect(page.locator("main")).to_contain_text("✓ sealed", timeout=LIMIT)
    assert eu.write(token).status in (409, 503)
    assert dr.leads(30) > token


@pytest.mark.timeout(120)
def test_without_javascript_it_reads_the_same_and_a_stranger_reads_nothing(
    regions: Regions, look: Callable[..., Page]
) -> None:
    eu, _, _ = regions
    page = look(eu.admin, java_script_enabled=False)
    expect(page.locator(".verdict")).to_contain_text("led by gw-eu in eu")
    expect(page.locator(".chain li")).to_have_count(5)
    stranger = ask(eu.admin, "GET", "/-/console")
    assert stranger.status == 401
    for path in ("/-/console/live", "/-/console/state", "/-/console/act?role=ledger", "/-/console/console.js"):
        assert ask(eu.admin, "GET", path).status == 401
    typed = {"Authorization": "Basic OnJlYWQtdG9rZW4tb2YtdGhlLW9wZXJhdG9ycw=="}
    assert (
        ask(eu.admin, "GET", "/-/console", **typed).headers["content-security-policy"].startswith("default-src 'none'")
    )
    # What a browser sends unasked must never act.
    act = {"Authorization": "Basic OmFjdC10b2tlbi1vZi10aGUtb3BlcmF0b3Jz"}
    for path in ("/-/roles/ledger/resign", "/-/roles/ledger/seal", "/-/roles/ledger/drain"):
        assert ask(eu.admin, "POST", path, **act).status == 401
    assert ask(eu.admin, "POST", "/-/console/act").status == 401
    assert ask(eu.admin, "POST", "/-/console/act", **act).status == 403, "only the token that is typed for it acts"
