"""What every page is made of: templates that escape, links, tables, plots, and the folder that they stand in."""

import json
import re

import pytest

from atrex.errors import UserError
from atrex.report.site import page as pages
from atrex.report.site.blocks import Facts, Figures, Heading, Notes, Source, Text
from atrex.report.site.page import Nav, Pages, Site, embedded, relative, slug
from atrex.report.site.plot import COLOURS, Plot, Styles, figure, labels
from atrex.report.site.table import Cell, TableView
from atrex.report.site.table import Heading as Column

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'{{ 7*7 }}\u2028"


def test_a_hostile_text_is_text_wherever_a_page_shows_one():
    table = TableView(HOSTILE, HOSTILE, [Column(HOSTILE, hint=HOSTILE)],
                      [[Cell(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE)]],
                      {HOSTILE: HOSTILE}, [HOSTILE])  # fmt: skip
    plot = Plot(HOSTILE, HOSTILE, [{"x": [HOSTILE], "y": [1], "name": HOSTILE, "links": [HOSTILE]}],
                {"xaxis": {"title": {"text": HOSTILE}}}, HOSTILE, {HOSTILE: HOSTILE}, [HOSTILE])  # fmt: skip
    cell = Cell(HOSTILE, href=HOSTILE, hint=HOSTILE, kind=HOSTILE)
    blocks = [
        table, plot, Text(HOSTILE, True, HOSTILE), Heading(HOSTILE, HOSTILE), Figures([(HOSTILE, cell)]),
        Facts([(HOSTILE, cell)]),
        Source(HOSTILE, HOSTILE, {HOSTILE: HOSTILE}, id=HOSTILE), Notes([HOSTILE]),
    ]  # fmt: skip
    made = Pages(HOSTILE, [Nav(HOSTILE, HOSTILE)], [HOSTILE], events=HOSTILE).render(
        "a/b.html", "page.html", title=HOSTILE, crumbs=[Nav(HOSTILE, HOSTILE)], blocks=blocks, plots=True
    )
    # Its own two scripts and the plot's data are all the script elements there are, and no element has a handler.
    assert len(re.findall(r"<script", made)) == 3
    assert "<img" not in made and not re.search(r"<[^>]*\sonerror", re.sub(r'"[^"]*"', '""', made))
    assert "49" not in made  # nothing in a text is a template


def test_json_in_a_page_is_read_back_as_it_was():
    text = str(embedded({"name": HOSTILE}))
    assert "<" not in text and "\u2028" not in text
    assert json.loads(text) == {"name": HOSTILE}


def test_plotly_is_given_no_markup_but_our_own():
    plot = Plot("p", "p", [{"x": ["<b>a</b>"], "y": [1], "name": '<a href="x">n</a>', "hovertemplate": "%{x}<br>%{y}"}],
                {"xaxis": {"categoryarray": ["<b>a</b>"]}}, "", {})  # fmt: skip
    made = figure(plot)
    assert made["traces"][0]["x"] == ["&lt;b&gt;a&lt;/b&gt;"] == made["layout"]["xaxis"]["categoryarray"]
    assert "<" not in made["traces"][0]["name"]
    assert made["traces"][0]["hovertemplate"] == "%{x}<br>%{y}"


def test_a_link_leads_from_where_the_page_stands():
    assert relative("operators/a.html#shape-1", "sets/k/index.html") == "../../operators/a.html#shape-1"
    assert relative("data/main.csv", "index.html") == "data/main.csv"
    assert relative("https://example.org/a?b=c", "x/y.html") == "https://example.org/a?b=c"


def test_a_text_with_a_scheme_of_its_own_is_no_address():
    assert relative("javascript:alert(1)", "index.html").startswith("javascript%3A")


def test_names_that_look_alike_have_files_of_their_own():
    names = ["claude/m 1", "claude/m-1", "Claude-m-1", "claude-m-1", "../../etc", "", "index", "x" * 300, "x" * 301]
    assert len({slug(name) for name in names}) == len(names)
    assert all(re.fullmatch(r"[a-z0-9._-]+", slug(name)) and ".." not in slug(name) for name in names)


def test_names_that_are_cut_alike_stay_apart_on_an_axis():
    made = labels(["a" * 50 + "end", "b" * 50 + "end", "c" * 20 + "a" * 50 + "end"])
    assert len(set(made.values())) == 3


def test_a_hundred_sets_look_different():
    styles = Styles([str(i) for i in range(100)])
    assert len({(styles.colour(str(i)), styles.symbol(str(i))) for i in range(100)}) == 100


def test_colours_can_be_told_from_either_background():
    style = pages.asset(pages.STYLE)
    backs = re.findall(r"--back: (#[0-9a-f]{6})", style)
    assert len(set(backs)) == 2
    assert min(_contrast(colour, back) for colour in COLOURS for back in backs) >= 3


@pytest.mark.parametrize("name", ["text", "soft", "link", "passed", "failed", "error", "skipped"])
def test_text_has_the_contrast_that_wcag_asks_for(name):
    style = pages.asset(pages.STYLE)
    schemes = list(zip(*(re.findall(rf"--{key}: (#[0-9a-f]{{6}})", style) for key in (name, "back", "raised", "mark")),
                       strict=True))  # fmt: skip
    assert len(schemes) == 3
    assert min(_contrast(text, back) for text, *backs in schemes for back in backs) >= 4.5


def test_what_an_earlier_site_had_is_taken_away_and_nothing_else(tmp_path):
    for name in ("a", "b"):
        site = Site(tmp_path / "site", Pages("t"))
        site.text(f"data/{name}.csv", name)
        site.close()
        (tmp_path / "site" / "note.txt").write_text("mine")
    assert sorted(p.name for p in (tmp_path / "site" / "data").iterdir()) == ["b.csv"]
    assert (tmp_path / "site" / "note.txt").read_text() == "mine"


def test_a_list_of_files_that_was_tampered_with_takes_nothing_away_outside(tmp_path):
    (tmp_path / "kept.txt").write_text("mine")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "site.json").write_text('{"files": ["../kept.txt"]}')
    Site(tmp_path / "site", Pages("t")).close()
    assert (tmp_path / "kept.txt").exists()


def test_without_plotly_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"atrex\[report\]"):
        Site(tmp_path / "site", Pages("t"))


def _contrast(a: str, b: str) -> float:
    """WCAG 2.2, relative luminance and contrast ratio."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)
