"""The page over HTTP, beside a real coordinator: what is sent, to whom, and what is turned away."""

import asyncio
import json
import re
import socket
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from typing import Any

import pytest
from world.clock import FakeClock
from world.engine import Bench, authority, operator
from world.serving import ask, feed, give_up_rounds, publish_round, serving, settings_of, with_page

from fedrec.errors import SettingsError
from fedrec.plan.schema import PrivacySettings
from fedrec.wire.admin_link import AdminLink
from fedrec_server.app import Coordinator
from fedrec_server.page import serving as pages
from fedrec_server.page.serving import COOKIE, LINK_SECONDS, MOST_LINK_BYTES, MOST_STREAMS
from fedrec_server.rounds.backoff import STALLED_AFTER, pause_seconds

CA = authority().issuer.certificate


@pytest.fixture
def found(tmp_path):
    with serving(Bench.of(3, total=3), tmp_path, prepare=with_page()) as made:
        yield made


@pytest.fixture
def guarded(tmp_path):
    # Names another machine could use, where the tests stay on this one.
    prepare = with_page(page_link=True)
    with serving(Bench.of(3), tmp_path, clock=FakeClock(), prepare=prepare) as made:
        yield made


def url(found):
    return found.coordinator.page_url


def first(messages, kind):
    return next(message for message in messages if message[1] == kind)


def number_after(messages, round_id):
    """Return the id of the message that told of a round."""
    of_rounds = (m for m in messages if m[1] in ("history", "news"))
    return next(m[0] for m in of_rounds if any(p["round"] == round_id for p in m[2]["rounds"]))


def missed(messages, number):
    """Return the rounds that a browser is told of after `number`, until it hears of round 2."""
    rounds: set[int] = set()
    before = int(number.partition(":")[2])
    while 2 not in rounds:
        _, kind, found = next(m for m in messages if m[1] in ("history", "news"))
        assert kind == "news", "what it has is not sent again"
        assert all(event["sequence"] > before for event in found["events"])
        rounds |= {point["round"] for point in found["rounds"]}
    return rounds


def link_of(found):
    with closing(AdminLink(found.address, operator())) as link:
        return link.open_page().token


def session_of(found, token):
    """Exchange a link; return what a browser would keep, and nothing where it gets nothing."""
    status, headers, body = ask(url(found), "/session", method="POST", body=token, authority=CA)
    assert status == 200
    cookie = headers.get("set-cookie", "")
    assert json.loads(body) == {"open": bool(cookie)}
    return cookie


class TestFiles:
    def test_the_page_is_whole_and_loads_nothing_else(self, found):
        status, headers, body = ask(url(found))
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        named = re.findall(r'(?:src|href)="([^"]+)"', body.decode())
        assert "/page.js" in named
        for path in {*named, "/feed.js", "/charts.js", "/words.js", "/vendor/uPlot-LICENSE.txt"}:
            status, _, text = ask(url(found), path)
            assert status == 200 and text, path
            # A name space, which is not fetched, and the licence's address of the library.
            hosts = set(re.findall(rb"https?://([a-z0-9.]+)", text))
            assert hosts <= {b"www.w3.org", b"github.com"}, path

    def test_nothing_inline_that_the_policy_would_refuse(self, found):
        body = ask(url(found))[2].decode()
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", body)
        assert not re.search(r"<script(?![^>]*\ssrc=)", body)

    @pytest.mark.parametrize("path", ["/", "/page.js", "/feed.json", "/session", "/../app.py"])
    def test_every_answer_has_the_same_headers(self, found, path):
        _, headers, _ = ask(url(found), path)
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'self';")
        assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers

    def test_nothing_else_is_there(self, found):
        for path in ("/metrics", "/application.py", "/static/page.js", "/vendor/", "/..%2fapp.py"):
            assert ask(url(found), path)[0] == 404


class TestWhoAsks:
    @pytest.mark.parametrize("path", ["/", "/feed", "/session"])
    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.x"]
    )
    def test_another_host_is_turned_away(self, found, path, host):
        assert ask(url(found), path, headers={"Host": host})[0] in (400, 421)

    @pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost", "LOCALHOST:80", "[::1]:9"])
    def test_its_own_names_are_good_at_any_port(self, found, host):
        # As through `ssh -L`.
        assert ask(url(found), headers={"Host": host})[0] == 200

    @pytest.mark.parametrize(
        "headers",
        [
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
        ],
    )
    def test_pages_of_other_sites_are_told_nothing(self, found, headers):
        assert ask(url(found), "/feed", headers=headers)[0] == 403
        assert ask(url(found), "/session", method="POST", body="x", headers=headers)[0] == 403

    def test_nothing_can_be_changed(self, found):
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert ask(url(found), "/", method=method)[0] == 405
            assert ask(url(found), "/feed", method=method)[0] == 405


class TestFeed:
    def test_the_past_and_then_what_happens(self, found):
        publish_round(found, 1)
        with feed(url(found)) as messages:
            about = first(messages, "about")[2]
            assert (about["federation"], about["protection"]) == ("movies", "none")
            assert about["budget"] is None and "coordinator" in about["who_reads"]
            number, _, past = first(messages, "history")
            assert number.startswith(f"{found.run}:")
            status = first(messages, "status")[2]
            assert (status["rounds_published"], status["rounds_planned"]) == (1, 5)
            publish_round(found, 2)
            seen = past["rounds"]
            while len(seen) < 2:
                seen += next(m[2]["rounds"] for m in messages if m[1] in ("news", "history"))
            assert [point["round"] for point in seen] == [1, 2]
            assert seen[0]["bytes_received"] == 3 * len(found.bench.payload(0, 1))
            while status["rounds_published"] < 2:
                status = first(messages, "status")[2]

    def test_it_says_what_status_says_and_names_no_client_by_id(self, found):
        found.come(range(3))
        found.upload(1)
        with closing(AdminLink(found.address, operator())) as link:
            asked = link.status()
        labels = asked.awaited
        with feed(url(found)) as messages:
            status = first(messages, "status")[2]
            text = json.dumps(status)
        # The same rows, made in one place.
        assert [(one["name"], one["state"]) for one in status["members"]] == [
            (one.name, one.state) for one in asked.members
        ]
        assert status["clients_here"] == asked.clients_here == 3
        # Without labels `status` shows how an id begins.
        assert tuple(status["awaited"]) == labels
        for number in range(3):
            full = found.bench.header(number, 1, b"", found.run).client_id
            assert full not in text

    def test_a_browser_that_was_away_is_told_what_it_missed(self, found):
        publish_round(found, 1)
        with feed(url(found)) as messages:
            number = number_after(messages, 1)
        publish_round(found, 2)
        for how in ({"headers": {"Last-Event-ID": number}}, {"path": f"/feed?after={number}"}):
            with feed(url(found), **how) as messages:
                assert missed(messages, number) == {2}

    @pytest.mark.parametrize("number", ["other:1", "x", ":", "-1", "9" * 400, "²"])
    def test_whoever_remembers_another_run_gets_everything(self, found, number):
        publish_round(found, 1)
        with feed(url(found), headers={"Last-Event-ID": number.encode()}) as messages:
            kinds = [next(messages)[1] for _ in range(2)]
        assert kinds == ["about", "history"]

    def test_a_restart_is_gone_on_from(self, tmp_path):
        bench = Bench.of(3, total=3)
        with serving(bench, tmp_path, prepare=with_page()) as found:
            publish_round(found, 1)
            with feed(url(found)) as messages:
                number = number_after(messages, 1)
        with serving(bench, tmp_path, prepare=with_page()) as found:
            publish_round(found, 2)
            with feed(url(found), headers={"Last-Event-ID": number}) as messages:
                assert missed(messages, number) == {2}

    def test_the_budget_is_told(self, tmp_path):
        privacy = PrivacySettings(mechanism="laplace", epsilon=8.0, rounds_per_user=3)
        with (
            serving(Bench.of(3, total=3, privacy=privacy), tmp_path, prepare=with_page()) as found,
            feed(url(found)) as messages,
        ):
            budget = first(messages, "about")[2]["budget"]
            status = first(messages, "status")[2]
        assert (budget["mechanism"], budget["epsilon"]) == ("laplace", 8.0)
        assert (status["noisy_sums"], status["epsilon"]) == (0, 0.0)

    def test_a_run_that_stalls_and_goes_on(self, tmp_path):
        clock, bench = FakeClock(), Bench.of(3, total=3)

        def until(messages, **wanted):
            """Return the next status in which the run is stalled, or in a round, as wanted."""
            for _, _, status in islice((m for m in messages if m[1] == "status"), 100):
                seen = {"stalled": status["stalled"], "current": status["current"] is not None}
                if wanted.items() <= seen.items():
                    found: dict[str, Any] = status
                    return found
            raise AssertionError(f"It was never {wanted}.")

        with (
            serving(bench, tmp_path, clock=clock, prepare=with_page()) as found,
            feed(url(found)) as messages,
        ):
            give_up_rounds(found, clock, STALLED_AFTER - 1)
            assert until(messages, current=False)["stalled"] is False
            give_up_rounds(found, clock, 1)
            status = until(messages, stalled=True)
            assert status["current"] is None and not status["finished"]
            assert len(status["awaited"]) == 3
            assert f"Stalled: {STALLED_AFTER} rounds in a row were abandoned" in status["waits_for"]
            assert "Next attempt in" in status["waits_for"]
            clock.advance(pause_seconds(found.coordinator.engine.run.state.rules, STALLED_AFTER))
            found.come(range(3))
            found.do(found.coordinator.engine.tick())
            until(messages, stalled=True, current=True)
            current = found.coordinator.engine.run.state.current
            assert current is not None and current.number == STALLED_AFTER + 1
            publish_round(found, current.number)
            status = until(messages, stalled=False)
            assert (status["rounds_published"], status["rounds_abandoned"]) == (1, STALLED_AFTER)

    def test_no_more_than_so_many_browsers(self, found):
        opened = [feed(url(found)) for _ in range(MOST_STREAMS)]
        try:
            for one in opened:
                next(one.__enter__())
            assert ask(url(found), "/feed")[0] == 503
        finally:
            for one in opened:
                one.__exit__(None, None, None)
        with serving_again(found) as messages:
            assert next(messages)[1] == "about", "places are given back"

    def test_stopping_ends_the_feed(self, found):
        with feed(url(found)) as messages:
            first(messages, "status")
            found.stop()
            assert [kind for _, kind, _ in messages if kind != "status"] == []


@contextmanager
def serving_again(found):
    """Open the feed as soon as there is a place again."""
    with ExitStack() as opened:
        for _ in range(200):
            try:
                messages = opened.enter_context(feed(url(found)))
            except AssertionError:
                found.do(found.coordinator.engine.tick())
            else:
                break
        else:
            raise AssertionError("No place is given back.")
        yield messages


class TestLink:
    def test_it_is_good_once_and_opens_a_session(self, guarded):
        assert url(guarded).startswith("https://127.0.0.1:")
        how = {"authority": CA}
        assert ask(url(guarded), "/", **how)[0] == 200, "which holds nothing of the run"
        assert ask(url(guarded), "/feed", **how)[0] == 401
        assert json.loads(ask(url(guarded), "/session", **how)[2]) == {"open": False}
        token = link_of(guarded)
        cookie = session_of(guarded, token)
        name, _, rest = cookie.partition("=")
        assert name == COOKIE == "__Host-fedrec-page"
        assert {"HttpOnly", "Secure", "Path=/", "SameSite=strict"} <= set(rest.split("; "))
        session = {"headers": {"Cookie": cookie.partition(";")[0]}, **how}
        with feed(url(guarded), **session) as messages:
            assert next(messages)[1] == "about"
        assert json.loads(ask(url(guarded), "/session", **session)[2]) == {"open": True}
        assert session_of(guarded, token) == "", "it was used before"

    def test_it_is_good_for_minutes(self, guarded):
        token, clock = link_of(guarded), guarded.coordinator.engine.run.clock
        assert isinstance(clock, FakeClock)
        clock.advance(LINK_SECONDS)
        assert session_of(guarded, token) == ""

    @pytest.mark.parametrize("cookie", ["", "x", "a" * 43])
    def test_other_cookies_open_nothing(self, guarded, cookie):
        headers = {"Cookie": f"{COOKIE}={cookie}"}
        assert ask(url(guarded), "/feed", authority=CA, headers=headers)[0] == 401

    def test_a_body_is_read_as_far_as_a_link_is_long(self, guarded):
        body = "x" * (MOST_LINK_BYTES + 1)
        found = ask(url(guarded), "/session", method="POST", body=body, authority=CA)
        assert found[0] == 413

    @pytest.mark.parametrize(
        "asked",
        [b"", b"GET /session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"],
        ids=["the first", "one after another"],
    )
    @pytest.mark.parametrize("more", [b"", b"G"], ids=["nothing", "a byte"])
    def test_a_request_that_never_comes_keeps_no_place(self, monkeypatch, tmp_path, asked, more):
        monkeypatch.setattr(pages, "REQUEST_SECONDS", 0.1)
        with serving(Bench.of(3), tmp_path, prepare=with_page()) as found:
            port = int(url(found).rstrip("/").rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), timeout=60) as line:
                line.sendall(asked)
                if asked:
                    assert line.recv(1 << 16).startswith(b"HTTP/1.1 200")
                line.sendall(more)
                while line.recv(1 << 16):
                    pass

    def test_a_body_that_never_comes_keeps_no_place(self, guarded, monkeypatch):
        monkeypatch.setattr(pages, "BODY_SECONDS", 0.1)
        headers = {"content-length": "43"}
        how = {"method": "POST", "body": "x", "headers": headers, "authority": CA}
        status, answered, _ = ask(url(guarded), "/session", **how)
        assert (status, answered["connection"]) == (408, "close")

    def test_its_address_carries_the_token_where_no_server_sees_it(self, guarded):
        with closing(AdminLink(guarded.address, operator())) as link:
            page = link.open_page()
        port = url(guarded).rstrip("/").rpartition(":")[2]
        assert page.url("movies.example") == f"https://127.0.0.1:{port}/#{page.token}"
        assert page.good_seconds == LINK_SECONDS

    def test_this_machine_needs_none(self, found):
        with closing(AdminLink(found.address, operator())) as link:
            page = link.open_page()
        assert (page.token, page.url("127.0.0.1")) == ("", url(found))

    def test_others_are_given_none(self, found):
        from world.engine import credentials

        from fedrec.errors import RefusedError

        with (
            closing(AdminLink(found.address, credentials(0))) as link,
            pytest.raises(RefusedError),
        ):
            link.open_page()

    def test_without_a_page_the_setting_is_named(self, tmp_path):
        with (
            serving(Bench.of(3), tmp_path) as found,
            closing(AdminLink(found.address, operator())) as link,
            pytest.raises(SettingsError, match=r"coordinator\.page"),
        ):
            link.open_page()


class TestAddress:
    def test_an_address_that_others_reach_speaks_tls_and_wants_a_link(self, tmp_path):
        with serving(Bench.of(3), tmp_path, prepare=with_page("0.0.0.0:0")) as found:
            there = url(found).replace("0.0.0.0", "localhost")
            assert there.startswith("https://")
            assert ask(there, "/feed", authority=CA)[0] == 401
            with closing(AdminLink(found.address, operator())) as link:
                page = link.open_page()
            assert page.url("localhost") == f"{there}#{page.token}"

    def test_a_port_that_is_taken_starts_nothing(self, tmp_path):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            coordinator = Coordinator(settings_of(tmp_path, page=address), Bench.of(3).federation)
            with pytest.raises(SettingsError, match=r"coordinator\.page.*cannot be opened"):
                asyncio.run(coordinator.start())
        with serving(Bench.of(3), tmp_path, prepare=with_page(address)):
            pass

    @pytest.mark.parametrize("content", [b"", b"not a PEM certificate", None])
    def test_a_certificate_that_cannot_be_used_is_named(self, tmp_path, content):
        path = tmp_path / "page.pem"
        if content is not None:
            path.write_bytes(content)
        settings = settings_of(
            tmp_path, page="127.0.0.1:0", page_link=True, page_certificate=str(path)
        )
        coordinator = Coordinator(settings, Bench.of(3).federation)
        with pytest.raises(SettingsError, match=r"coordinator\.page_certificate.*page\.pem"):
            asyncio.run(coordinator.start())
