"""The page in a browser: Chromium without a window, on the widths of a telephone and of a desk."""

from __future__ import annotations

import json
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import pytest
from debian import install
from playwright.sync_api import Page, expect, sync_playwright
from server.page.test_feed import metrics
from world.clock import FakeClock
from world.engine import Bench, identity, operator
from world.serving import give_up_rounds, publish_round, serving, with_page

from fedrec.ids import RoundId
from fedrec.wire.admin_link import AdminLink
from fedrec_server.rounds.backoff import STALLED_AFTER, pause_seconds
from fedrec_server.store.store import Entry

pytestmark = pytest.mark.long

CHROMIUM = "/usr/bin/chromium"
SIZES = {"telephone": (390, 844), "desk": (1280, 900)}
PATIENCE_MILLISECONDS = 20_000.0
ROUNDS = 12


@pytest.fixture(scope="module")
def browser():
    install("chromium", "chromium")
    with sync_playwright() as playwright:
        # Its sandbox needs more rights than a container has.
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@dataclass
class Looked:
    """A tab, and what went wrong in it."""

    page: Page
    problems: list[str] = field(default_factory=list)

    def shows(self, selector, text):
        """Wait for an element to say something."""
        expect(self.page.locator(selector)).to_contain_text(text, timeout=PATIENCE_MILLISECONDS)


@contextmanager
def look(browser, url, *, size="desk", theme="light", prepare=lambda page: None):
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if theme == "dark" else "light",
        # The key authority's certificate is no browser's.
        ignore_https_errors=True,
    )
    found = Looked(context.new_page())
    here = url.partition("#")[0]
    found.page.on("pageerror", lambda error: found.problems.append(str(error)))
    found.page.on("console", lambda line: found.problems.append(line.text))
    found.page.on(
        "request",
        lambda request: (
            None if request.url.startswith(here) else found.problems.append(request.url)
        ),
    )
    prepare(found.page)
    found.page.goto(url)
    try:
        yield found
    finally:
        context.close()


def train(found, rounds=ROUNDS, *, first=1, gain=lambda number: number):
    """Put rounds of which much was measured into the journal, as if they had been published."""
    engine = found.coordinator.engine
    entries = [
        Entry(
            unix_seconds=1000.0 + number,
            kind="round published",
            round=RoundId(number),
            fields_json=json.dumps(
                {
                    "kind": "train",
                    "counted": 3,
                    "bytes_received": 3 << 20,
                    "bytes_published": 1 << 20,
                    "seconds": 1.5,
                    "metrics": metrics(
                        participants=10,
                        loss=max(1, 20 - number) << 15,
                        model__validation__users=100,
                        model__validation__hits=2 * number,
                        model__validation__gain=gain(number) << 20,
                    ),
                }
            ),
        )
        for number in range(first, rounds + 1)
    ]

    async def write():
        await engine.run.work.in_thread(engine.run.store.commit, [], entries)
        await engine.run.work.in_thread(engine.quality.read, engine.run.store)
        engine.run.watchers.wake_all()

    found.do(write())


@pytest.fixture
def found(tmp_path):
    with serving(Bench.of(3, total=3), tmp_path, prepare=with_page()) as made:
        yield made


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_a_run_from_nothing_to_curves(browser, found, size, theme):
    with look(browser, found.coordinator.page_url, size=size, theme=theme) as tab:
        page = tab.page
        tab.shows("#state", "Waiting")
        tab.shows("#done", "0 of 5 rounds published")
        expect(page.locator("#no-rounds")).to_be_visible()
        assert page.locator("canvas").count() == 0
        train(found)
        tab.shows("#round-rows tr:first-child", "0.2400")
        tab.shows("#round-rows tr:first-child", "0.1200")
        tab.shows(".chart >> nth=1", "loss 0.800")
        tab.shows("#under", "HR and NDCG are measured under full")
        expect(page.locator("canvas")).to_have_count(4)
        drawn = page.locator(".plot canvas").evaluate_all(
            "all => all.map(one => one.getContext('2d')"
            ".getImageData(0, 0, one.width, one.height).data.some(value => value > 0))"
        )
        assert drawn == [True] * 4
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide == SIZES[size][0], "nothing makes the page wider than the window"
        cut_off = page.locator(".card, .tile").evaluate_all(
            "all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent)"
        )
        assert cut_off == []
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        red = int(ground.removeprefix("rgb(").partition(",")[0])
        assert (red < 64) == (theme == "dark")
        ink = page.evaluate("getComputedStyle(document.querySelector('#story')).color")
        assert ink != ground
        assert tab.problems == []


def test_a_round_that_is_published_shows_by_itself(browser, found):
    with look(browser, found.coordinator.page_url) as tab:
        tab.shows("#state", "Waiting")
        found.come(range(3))
        tab.shows("#state", "Running")
        found.upload(0)
        tab.shows("#arrived", "1 of 3 updates arrived")
        publish_round(found, 1, range(1, 3))
        tab.shows("#done", "1 of 5 rounds published")
        tab.shows("#events", "Round 1 (count) published: 3 clients")
        tab.shows("#announcement", "Round 1 (count) published")
        assert tab.problems == []


def test_a_restart_is_waited_for_and_nothing_is_missed(browser, tmp_path):
    bench = Bench.of(3, total=3)
    with serving(bench, tmp_path, prepare=with_page()) as found:
        url = found.coordinator.page_url
        address = url.removeprefix("http://").rstrip("/")
        publish_round(found, 1)
        looking = look(browser, url)
        tab = looking.__enter__()
        tab.shows("#done", "1 of 5")
    try:
        tab.shows("#banner", "Connection lost, trying again.")
        with serving(bench, tmp_path, prepare=with_page(address)) as found:
            publish_round(found, 2)
            tab.shows("#done", "2 of 5")
            expect(tab.page.locator("#banner")).to_be_hidden()
            expect(tab.page.locator("#round-rows tr")).to_have_count(2)
            tab.shows("#connection", "live")
        # The browser itself tells of connections that were refused, and nothing else is wrong.
        assert [one for one in tab.problems if "ERR_" not in one] == []
    finally:
        looking.__exit__(None, None, None)


def test_a_link_lets_one_browser_in(browser, tmp_path):
    prepare = with_page(page_link=True)
    with serving(Bench.of(3, total=3), tmp_path, prepare=prepare) as found:
        with closing(AdminLink(found.address, operator())) as link:
            url = link.open_page().url("127.0.0.1")
        with look(browser, url) as tab:
            tab.shows("#state", "Waiting")
            expect(tab.page).to_have_url(url.partition("#")[0])
            tab.page.reload()
            tab.shows("#state", "Waiting")
            assert tab.page.evaluate("document.cookie") == "", "scripts do not see the session"
            assert tab.problems == []
        with look(browser, url) as tab:
            tab.shows("#locked", "The link was used before")
            expect(tab.page.locator("#run")).to_be_hidden()
            assert tab.problems == []


def test_a_link_outlives_a_connection_that_breaks(browser, tmp_path):
    """Asked once more with it: who was not answered has used up nothing."""
    broken: list[str] = []

    def prepare(page):
        def break_once(route):
            if broken:
                route.continue_()
            else:
                broken.append(route.request.method)
                route.abort()

        page.route("**/session", break_once)

    with serving(Bench.of(3), tmp_path, prepare=with_page(page_link=True)) as found:
        with closing(AdminLink(found.address, operator())) as link:
            url = link.open_page().url("127.0.0.1")
        with look(browser, url, prepare=prepare) as tab:
            tab.shows("#state", "Waiting")
            expect(tab.page).to_have_url(url.partition("#")[0])
            assert broken == ["POST"]
            assert [one for one in tab.problems if "ERR_" not in one] == []


def test_a_run_that_stalls_says_so_until_a_round_is_published(browser, tmp_path):
    clock = FakeClock()
    with serving(Bench.of(3, total=3), tmp_path, clock=clock, prepare=with_page()) as found:
        engine = found.coordinator.engine
        with look(browser, found.coordinator.page_url) as tab:
            give_up_rounds(found, clock, STALLED_AFTER)
            tab.shows("#state", "Stalled")
            tab.shows("#story", f"Stalled: {STALLED_AFTER} rounds in a row were abandoned")
            tab.shows("#done", f"0 of 5 rounds published, {STALLED_AFTER} given up")
            assert tab.page.locator("#now").get_attribute("data-state") == "stalled"
            clock.advance(pause_seconds(engine.run.state.rules, STALLED_AFTER))
            found.come(range(3))
            tab.shows("#state", "Stalled, trying again")
            tab.shows("#story", f"Round {STALLED_AFTER + 1} (count)")
            publish_round(found, STALLED_AFTER + 1)
            tab.shows("#done", "1 of 5 rounds published")
            expect(tab.page.locator("#state")).not_to_contain_text(
                "Stalled", timeout=PATIENCE_MILLISECONDS
            )
            assert tab.page.locator("#now").get_attribute("data-state") in ("running", "waiting")
            assert tab.problems == []


def test_clients_that_are_not_here_stand_first(browser, found):
    with look(browser, found.coordinator.page_url) as tab:
        found.come(range(3))
        tab.shows("#tiles", "3 of 3")
        with found.link(2) as link:
            link.goodbye(identity(2).client_id, "data")
        label = identity(2).public.label
        tab.shows("#members tr:first-child", f"{label}stopped error [data] The data cannot be used")
        tab.shows("#members tr:first-child", "s ago")
        tab.shows("#tiles", "2 of 3")
        expect(tab.page.locator("#members tr")).to_have_count(3)
        expect(tab.page.locator("#more-members")).to_be_hidden()
        assert tab.problems == []


def test_each_metric_has_a_best_round_of_its_own(browser, found):
    with look(browser, found.coordinator.page_url) as tab:
        train(found, gain=lambda number: ROUNDS + 1 - number)
        tab.shows("#tiles", "best 0.2400: version 11, in round 12")
        tab.shows("#tiles", "best 0.1200: in round 1")
        tab.shows("#round-rows .best", "1 best")


def test_a_round_shows_within_a_second(browser, found):
    """The fastest of a few: a busy machine delays some, a page that asks too seldom all."""
    with look(browser, found.coordinator.page_url) as tab:
        train(found, 1)
        tab.shows("#round-rows", "1")
        delays = []
        for number in range(2, 7):
            began = time.monotonic()
            train(found, number, first=number)
            expect(tab.page.locator("#round-rows tr")).to_have_count(
                number, timeout=PATIENCE_MILLISECONDS
            )
            delays.append(time.monotonic() - began)
        assert min(delays) < 1.0


def test_it_is_used_with_a_keyboard(browser, found):
    with look(browser, found.coordinator.page_url) as tab:
        train(found, ROUNDS + 2)
        tab.shows("#all-rounds", "Show all 14")
        tab.page.keyboard.press("Tab")
        expect(tab.page.locator("#all-rounds")).to_be_focused()
        tab.page.keyboard.press("Enter")
        expect(tab.page.locator("#round-rows tr")).to_have_count(ROUNDS + 2)
        assert tab.page.locator("[aria-live]").count() == 1
        names = tab.page.locator(".plot").evaluate_all(
            "all => all.map(one => one.getAttribute('aria-label'))"
        )
        assert names[0] == (
            "Quality on validation items, full; round 14: HR@10 0.2800, NDCG@10 0.1400"
        )
