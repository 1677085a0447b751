"""The report and its figures: self-contained, escaped, well formed."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from fedrec.evaluation.metrics import Rates
from fedrec_lab.reports.drawing import SizeBar, as_element
from fedrec_lab.reports.figures import quality_by_round, size_bars
from fedrec_lab.reports.html import Fact, Figure, ProtocolTable, ReportContent, render_report
from fedrec_lab.reports.result_row import ResultRow

pytestmark = pytest.mark.slow

EVIL = "<script>alert('x')</script> & \"y\""
POPULAR = Rates(users=50, hr=0.15, recall=0.15, ndcg=0.03, mrr=0.02)


@pytest.fixture
def page(rounds):
    return render_report(
        ReportContent(
            title=EVIL,
            subtitle=EVIL,
            rows=(ResultRow(label=EVIL, samples=(POPULAR,), note=EVIL),),
            at=10,
            findings=(EVIL,),
            figures=(
                Figure(
                    name="a",
                    plot=quality_by_round(rounds, at=10, protocol="full", popularity=POPULAR),
                    caption=EVIL,
                ),
                Figure(name="b", plot=size_bars([SizeBar(label=EVIL, n_bytes=77)]), caption="b"),
            ),
            statements=(EVIL,),
            facts=(Fact(name=EVIL, value=EVIL),),
            rounds=rounds,
        )
    )


class Tags(HTMLParser):
    """Checks that tags close in order, and collects them with their attributes."""

    VOID = frozenset({"meta"})

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_all_text_is_escaped_and_all_tags_close(page):
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 8
    tags = Tags()
    tags.feed(page)
    assert tags.open == []


def test_nothing_is_loaded_from_anywhere(page):
    tags = Tags()
    tags.feed(page)
    for tag, attributes in tags.seen:
        assert tag not in {"script", "link", "img", "iframe", "object", "image", "base"}
        for name in ("src", "href", "xlink:href", "data"):
            assert (attributes.get(name) or "#").startswith("#")
    assert "url(http" not in page
    assert "@import" not in page
    identifiers = [attributes["id"] for _, attributes in tags.seen if "id" in attributes]
    assert not [name for name in identifiers if name.startswith(("figure", "axes"))]


def test_it_follows_light_and_dark(page):
    assert "color-scheme: light dark" in page
    assert "currentColor" in page
    assert "#010203" not in page


def test_sections_without_content_are_absent():
    page = render_report(ReportContent(title="a", subtitle="b", rows=(), at=10))
    assert "<h2>" not in page


def test_figures_are_the_same_bits_every_time_and_valid_xml(rounds):
    one = as_element(
        quality_by_round(rounds, at=10, protocol="full", popularity=POPULAR, best_version=3)
    )
    again = quality_by_round(rounds, at=10, protocol="full", popularity=POPULAR, best_version=3)
    assert one == as_element(again)
    assert ElementTree.fromstring(one).tag.endswith("svg")
    assert "HR@10 of popularity" in one
    assert "chosen on validation" in one
    assert re.search("version of the model", one)
    ElementTree.fromstring(
        as_element(quality_by_round(rounds, at=10, protocol="full", split="test"))
    )


def test_figures_of_little(rounds):
    ElementTree.fromstring(as_element(quality_by_round((), at=10, protocol="full")))
    ElementTree.fromstring(as_element(quality_by_round(rounds[:2], at=10, protocol="full")))
    ElementTree.fromstring(as_element(size_bars(())))
    bars = as_element(size_bars([SizeBar(label="dense", n_bytes=5_300_000, chosen=True)]))
    assert "5,300,000 bytes" in bars


def test_nothing_sent_has_a_bar_of_its_own():
    """FedRAP-D shares no table; on the logarithmic scale 0 has no place."""
    nothing = SizeBar(label="no table", n_bytes=0)
    found = as_element(size_bars([nothing, SizeBar(label="something", n_bytes=1000)]))
    assert ">0 bytes<" in found
    assert ">1,000 bytes<" in found


def test_every_protocol_has_a_table_and_its_mark(rounds):
    row = ResultRow(label="fedmf", samples=(POPULAR,))
    page = render_report(
        ReportContent(
            title="a",
            subtitle="b",
            rows=(row,),
            at=10,
            protocol="sampled",
            caution="It flatters.",
            also=(ProtocolTable(protocol="full", rows=(row,)),),
            rounds=rounds,
        )
    )
    assert page.count('<table class="results">') == 2
    assert "<th>sampled (!) NDCG@10</th>" in page and "<th>full NDCG@10</th>" in page
    assert "sampled (!): It flatters." in page
    assert page.count("<th>sampled (!) HR@10</th>") == 2, "the rounds are the plan's protocol too"
