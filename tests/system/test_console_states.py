"""Every state of the console in a real Chromium: it says what is so, without a complaint of the page's policy, and axe,
which looks for what keeps people out, finds nothing. The states are scripted (``console_scenes.py``).

``FENCEGATE_SCREENSHOTS=FOLDER`` keeps a picture of each; ``tests/screenshots`` has those that were looked at last.
"""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from system.console_scenes import ACT, HOSTILE, SCENES, Stage, on_stage
from system.test_console import QUIET

pytestmark = pytest.mark.system

PICTURES = Path(__file__).parents[1] / "screenshots"
KEEP_IN = os.environ.get("FENCEGATE_SCREENSHOTS")
LIMIT = 30_000  # milliseconds
expect.set_options(timeout=LIMIT)

SAYS = {
    "led": ["✓ one leader ledger: led by gw-eu in eu, token 42, lease 11.8 s left", "✓ holds", "112", "10.4.0.17"],
    "no-leader": ["✗ no leader NO LEADER of ledger for 7 s", "✗ fails here", "– says nothing now", "⚠ alarm"],
    "two-leaders": ["✗ two leaders TWO LEADERS of ledger: gw-eu in eu (token 42) and gw-dr in dr (token 43)"],
    "unseen": ["cannot be seen", "⚠"],
    "store-down": ["⚠ The store of gw-eu in eu does not answer (no connection to db-eu.example:5432).", "✗ fails here"],
    "observe": ["⚠ OBSERVE MODE at gw-eu in eu", "let through", "58"],
    "draining": ["DRAINING at gw-eu in eu", "draining: eu"],
    "many": ["99 of 100 roles have one leader", "NO LEADER of shard/7"],
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=QUIET.split())
        yield started
        started.close()


@pytest.fixture(scope="module")
def standing() -> Iterator[Stage]:
    with on_stage() as found:
        yield found


@pytest.fixture
def stage(standing: Stage) -> Stage:
    standing.scene, standing.frozen = SCENES["led"], False
    standing.acted.clear()
    return standing


Open = Callable[..., Page]


@pytest.fixture
def look(browser: Browser, stage: Stage) -> Iterator[Open]:
    """Opens the console on a scene; in the end, fails if a page complained of anything."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def open_it(scene: str, path: str = "/-/console", **options: object) -> Page:
        stage.show(SCENES[scene])
        context = browser.new_context(**({"viewport": {"width": 1200, "height": 900}} | options))
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on(
            "request",
            lambda asked: None if asked.url.startswith((stage.url, "data:")) else complaints.append(asked.url),
        )
        page.goto(stage.url + path)
        return page

    yield open_it
    for context in contexts:
        context.close()
    # A refused action shows up as a resource that failed to load; everything else is a fault of the page.
    assert not [text for text in complaints if "Failed to load resource" not in text]


def kept(page: Page, name: str) -> None:
    """Keeps a picture as WebP, small enough to be kept with the tests; Chromium itself makes it."""
    if not KEEP_IN:
        return
    raw = page.screenshot(full_page=True)
    (Path(KEEP_IN) / f"{name}.png").write_bytes(raw)
    blank = page.context.browser.new_page()  # type: ignore[union-attr]
    url = blank.evaluate(
        """async (png) => { const image = new Image(); image.src = "data:image/png;base64," + png; await image.decode();
        const canvas = document.createElement("canvas"); canvas.width = 0.7 * image.width;
        canvas.height = 0.7 * Math.min(image.height, 2400);
        const context = canvas.getContext("2d"); context.scale(0.7, 0.7); context.imageSmoothingQuality = "high";
        context.drawImage(image, 0, 0); return canvas.toDataURL("image/webp", 0.4); }""",
        base64.b64encode(raw).decode(),
    )
    (Path(KEEP_IN) / f"{name}.webp").write_bytes(base64.b64decode(url.partition(",")[2]))
    blank.close()


def keeps_nobody_out(page: Page) -> None:
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize(
    ("scene", "scheme"),
    [*((scene, "light") for scene in SAYS), ("led", "dark"), ("no-leader", "dark"), ("observe", "dark")],
)
def test_each_state_says_what_is_so_and_keeps_nobody_out(look: Open, scene: str, scheme: str) -> None:
    page = look(scene, color_scheme=scheme)
    for words in SAYS[scene]:
        expect(page.locator("body")).to_contain_text(words, timeout=LIMIT)
    expect(page.locator("#old")).to_be_hidden()
    if scheme == "light":
        kept(page, scene)
    elif scene == "led":
        kept(page, "led-dark")
    keeps_nobody_out(page)


def test_on_a_narrow_phone_nothing_is_cut_off(look: Open) -> None:
    page = look("no-leader", viewport={"width": 360, "height": 740})
    expect(page.locator(".chain li")).to_have_count(5)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    kept(page, "no-leader-phone")
    keeps_nobody_out(page)


def test_without_javascript_it_says_the_same_and_can_be_held_still(look: Open) -> None:
    page = look("two-leaders", java_script_enabled=False)
    for words in SAYS["two-leaders"]:
        expect(page.locator("body")).to_contain_text(words)
    kept(page, "two-leaders-no-javascript")
    page.get_by_role("link", name="Hold it still").click()
    expect(page.get_by_role("link", name="Let it reload")).to_be_visible()


def test_what_has_grown_old_is_said_aloud_once_and_marked_until_there_is_news(look: Open, stage: Stage) -> None:
    page = look("led")
    expect(page.locator("body")).to_contain_text("led by gw-eu")
    stage.frozen = True
    expect(page.locator("#old")).to_contain_text(
        "✗ No word from this gateway: what stands below is old.", timeout=LIMIT
    )
    expect(page.locator("#old [role=alert]")).not_to_contain_text("ago")
    kept(page, "old")
    stage.scene, stage.frozen = SCENES["no-leader"], False
    expect(page.locator("#old")).to_be_hidden(timeout=LIMIT)
    expect(page.locator("#spoken")).to_have_text("NO LEADER of ledger", timeout=LIMIT)


def test_what_changes_every_second_is_not_read_out(look: Open, stage: Stage) -> None:
    page = look("led")
    expect(page.locator(".verdict")).to_contain_text("lease 11.8 s left")
    page.evaluate(
        "window.heard = 0; new MutationObserver(() => heard++).observe(document.getElementById('spoken'),"
        " {childList: true, characterData: true, subtree: true})"
    )
    eu, dr = SCENES["led"]
    for left in (10.6, 9.5, 8.4):
        role = eu["roles"][0]
        stage.scene = ({**eu, "roles": [{**role, "fence": {**role["fence"], "valid_for_s": left}}]}, dr)
        expect(page.locator(".verdict")).to_contain_text(f"lease {left} s left", timeout=LIMIT)
    assert page.evaluate("heard") == 0


def test_a_hundred_roles_are_filtered_and_one_is_chosen_by_keyboard_alone(look: Open) -> None:
    page = look("many")
    expect(page.locator("#roles tbody tr")).to_have_count(100)
    expect(page.locator("#roles tbody tr").first).to_contain_text("shard/7")
    page.get_by_role("searchbox").focus()
    page.keyboard.type("shard/4")
    page.keyboard.press("Enter")
    expect(page.locator("#roles tbody tr")).to_have_count(11)
    link = page.get_by_role("link", name="shard/42", exact=True)
    link.focus()
    page.wait_for_timeout(2500)  # two exchanges of the table: whoever stands in it is left where they are
    assert page.evaluate("document.activeElement.textContent") == "shard/42"
    page.keyboard.press("Enter")
    expect(page.locator("h2.verdict")).to_contain_text("shard/42: led by gw-eu in eu")


def test_the_skip_link_is_first_and_focus_can_be_seen(look: Open) -> None:
    page = look("led")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineWidth") == "3px"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "now"


def test_whatever_a_client_or_an_election_store_writes_is_read_as_text(look: Open) -> None:
    page = look("hostile")
    expect(page.locator("h2.verdict")).to_contain_text(HOSTILE)
    expect(page.locator("#senders")).to_contain_text(HOSTILE)
    expect(page.locator("#events")).to_contain_text(HOSTILE)
    page.wait_for_timeout(2500)  # the same over the live stream
    assert page.locator("main img, main script").count() == 0
    assert "one leader" in page.title() or HOSTILE in page.title()
    kept(page, "hostile")
    page.get_by_role("link", name="Hand over, drain or seal").click()
    expect(page.locator("h1")).to_contain_text(HOSTILE)
    assert page.locator("main img, main script").count() == 0


def test_it_prints(look: Open) -> None:
    page = look("led")
    page.emulate_media(media="print", color_scheme="dark")
    expect(page.locator("h2.verdict")).to_be_visible()
    expect(page.locator(".act").first).to_be_hidden()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


# -- acting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [True, False], ids=["with-javascript", "without"])
def test_a_seal_needs_its_role_and_term_typed_and_the_token(look: Open, stage: Stage, script: bool) -> None:
    page = look("rehearsal", "/-/console/act?role=ledger", java_script_enabled=script)
    if script:
        kept(page, "actions")
        keeps_nobody_out(page)
    for typed, secret, words in (
        ("ledger", ACT, "To confirm, ledger 42 has to be typed"),
        ("ledger 42", "read-token", "That is not the token for actions"),
    ):
        send(page, typed, secret)
        expect(page.locator("main")).to_contain_text(words)
        assert stage.acted == []
        page.get_by_role("link", name="to the actions").click()
    send(page, "ledger 42", ACT)
    expect(page.locator("main")).to_contain_text("✓ sealed")
    assert stage.acted == [("seal", "ledger", {"token": 42, "limit": 10.0})]
    if script:
        keeps_nobody_out(page)


def send(page: Page, typed: str, secret: str) -> None:
    form = page.get_by_role("form", name="Seal term 42")
    form.get_by_label("To confirm").fill(typed)
    form.get_by_label("Token for actions").fill(secret)
    form.get_by_role("button").click()


def test_a_page_of_somebody_else_cannot_act_even_with_the_token(browser: Browser, stage: Stage) -> None:
    page = browser.new_page()
    page.set_content(
        f'<form method="post" action="{stage.url}/-/console/act"><input name="action" value="seal">'
        f'<input name="role" value="ledger"><input name="term" value="42"><input name="typed" value="ledger 42">'
        f'<input name="secret" value="{ACT}"><input name="limit" value="10"><button>Win</button></form>'
    )
    page.get_by_role("button").click()
    expect(page.locator("main")).to_contain_text("not sent by a page of this console")
    assert stage.acted == []
    page.close()


# -- the pictures -----------------------------------------------------------------------------------


def test_a_small_picture_of_each_state_is_kept() -> None:
    found = {path.stem: path.stat().st_size for path in PICTURES.glob("*.webp")}
    others = {"led-dark", "no-leader-phone", "two-leaders-no-javascript", "old", "hostile", "actions"}
    assert set(found) == {*SAYS, *others}
    assert sum(found.values()) < 1_000_000
    assert min(found.values()) > 5_000, "a page with something on it"
