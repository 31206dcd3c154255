"""In headless Chromium: the live view follows the files, campaign, trace, chip and wiki pages work, text stays text."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="needs playwright")
pytest.importorskip("uvicorn", reason="needs atrex[serve]")
pytest.importorskip("plotly", reason="needs atrex[report]")
pytest.importorskip("polars", reason="needs atrex[traces]")

from playwright.sync_api import expect
from serving import serving
from synthetic import unit, write_run
from tests.report.made import HOSTILE, full_campaign, trace_set

from atrex.report.site.whole import write_whole
from atrex.report.sources import recognise

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
POINTS = "id => document.getElementById(id).querySelector('.canvas').data.map(t => (t.x ?? t.y).length)"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site over a plain and a hostile campaign and a hostile data set, on disk."""
    folder = tmp_path_factory.mktemp("whole")
    full_campaign(folder / "plain")
    full_campaign(folder / "hostile", HOSTILE)
    trace_set(folder / "traced", HOSTILE)
    out = tmp_path_factory.mktemp("site") / "site"
    write_whole(out, None, recognise([folder]), jobs=1)
    return out


def test_a_unit_that_lands_shows_up_and_what_the_reader_chose_stays(window, tmp_path):
    run = write_run(tmp_path / "run", [unit(shape=str(n)) for n in range(8)])
    with serving(tmp_path) as served:
        page = window.open(f"{served.url}boards.html")
        page.locator("main a[href*='sets/']").first.click()
        page.locator("main a[href*='rms_norm']").first.click()
        page.wait_for_selector("body[data-drawn]")
        field = page.locator(".controls input").first
        field.fill("passed")
        expect(page.locator(".controls .count").first).to_have_text("8 of 8 rows")
        with (run / "units.jsonl").open("a") as file:
            file.write(unit(shape="8").model_dump_json() + "\n")
        expect(page.locator(".controls .count").first).to_have_text("9 of 9 rows", timeout=30_000)
        expect(field).to_have_value("passed")
        assert window.faults == []  # before the server goes


def test_every_page_opens_from_disk_without_a_fault_or_a_network(window, site):
    pages = sorted(site.rglob("*.html"))
    cards = [page for page in pages if page.parent.name == "wiki"]
    for path in [page for page in pages if page not in cards[5:]]:
        window.open(path.as_uri())
    assert window.faults == []
    assert len(pages) > 200 and all(url.startswith(("file:", "data:")) for url in window.asked)


def test_hostile_text_stays_text(window, site):
    pages = [path for path in site.rglob("*.html") if "hostile" in str(path) or "traced" in str(path)]
    said = 0
    for path in pages:
        page = window.open(path.as_uri())
        assert "owned" not in page.title().replace(HOSTILE, "")
        assert page.locator("main img, main script:not([type='application/json'])").count() == 0
        said += HOSTILE in page.locator("main").inner_text()
    assert window.faults == [] and said >= 8


def test_plots_of_a_campaign_have_a_point_for_every_attempt(window, site):
    page = window.open((site / "campaigns" / "plain" / "index.html").as_uri())
    line, *outcomes = page.evaluate(POINTS, "timeline")
    assert line == 6 and sum(outcomes) == 6 and len(outcomes) == 5
    assert sum(page.evaluate(POINTS, "gains")) == 3
    page.goto((site / "campaigns" / "plain" / "attempt-0001.html").as_uri())
    page.wait_for_selector("body[data-drawn]")
    shapes = page.evaluate(POINTS, "contest")
    rounds = int(page.locator("p.lead").inner_text().split(" rounds")[0].split()[-1])
    assert shapes == [rounds, rounds]
    assert window.faults == []


def test_attempts_are_filtered_by_outcome(window, site):
    page = window.open((site / "campaigns" / "plain" / "index.html").as_uri())
    page.locator("#iterations select").nth(1).select_option("promoted")
    expect(page.locator("#iterations .count")).to_have_text("2 of 6 rows")
    expect(page.locator("#iterations tbody tr:visible")).to_have_count(2)


def test_plots_of_traces_have_a_bar_for_every_family(window, site):
    page = window.open((site / "traces" / "traced" / "index.html").as_uri())
    families = page.locator("#by-family tbody tr").count()
    assert set(page.evaluate(POINTS, "families")) == {families}
    assert set(page.evaluate(POINTS, "by-application")) == {2}
    operators = page.locator("#weights tbody tr").count()
    assert page.evaluate(POINTS, "weights-plot") == [operators, operators]


def test_a_chip_has_a_line_for_every_peak(window, site):
    page = window.open((site / "chips" / "chip-h200.html").as_uri())
    peaks = page.locator("#values td.code", has_text="peaks.")
    assert 3 <= len(page.evaluate(POINTS, "roofline")) <= peaks.count()
    assert page.locator("#values a[href^='https://']").count() >= peaks.count()


def test_the_wiki_is_searched_and_browsed_without_a_network(window, site):
    page = window.open((site / "wiki" / "index.html").as_uri())
    page.locator("#search").fill("split-kv paged attention")
    first = page.locator("#wiki-cards tbody tr:visible").first
    expect(first).to_contain_text("attention")
    expect(page.locator("#found")).to_contain_text("the best first")
    page.locator("#search").fill("")
    dsl = page.locator("#wiki-cards select").nth(3)
    dsl.select_option("triton")
    shown = page.locator("#wiki-cards tbody tr:visible")
    assert 1 <= shown.count() < 165
    assert all("triton" in text for text in shown.locator("td:nth-child(6)").all_inner_texts())
    shown.first.locator("a").click()
    expect(page.locator("h2", has_text="Sources")).to_be_visible()
    assert window.faults == [] and all(url.startswith(("file:", "data:")) for url in window.asked)


def test_the_theme_and_the_tables_work_by_keyboard(window, site):
    page = window.open((site / "chips" / "index.html").as_uri())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.locator("#theme").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") in ("dark", "light")
    page.locator("#compared th button", has_text="memory_bandwidth").focus()
    page.keyboard.press("Enter")
    cells = page.locator("#compared tbody tr td:nth-child(7)").all()
    values = [float(cell.get_attribute("data-sort")) for cell in cells]
    assert values == sorted(values, reverse=True)


def test_pages_are_light(site):
    heaviest = max(path.stat().st_size for path in Path(site).rglob("*.html"))
    assert heaviest < 3_000_000
