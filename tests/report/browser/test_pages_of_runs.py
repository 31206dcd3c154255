"""In headless Chromium: the pages of runs load from disk without a fault, filter, sort, plot, and lead to records."""

import json
import re

import pytest

pytest.importorskip("playwright", reason="needs playwright")
pytest.importorskip("plotly", reason="needs atrex[report]")

from playwright.sync_api import expect
from studies import about, generated, judged, write_generation, write_pages
from synthetic import failed, unit

from atrex.report.study.document import study
from atrex.report.study.sets import find_sets

pytestmark = pytest.mark.slow

OPERATOR, SHAPES = "rms_norm", 12
HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"><b>b</b>{{ 7*7 }}"
)
POINTS = "id => document.getElementById(id).querySelector('.canvas').data.map(t => (t.x ?? t.y).length)"


def units(n: int):
    """Of twelve shapes one fails and the rest have an S that rises with the set's number."""
    return [
        failed("runtime", "numeric_mismatch", OPERATOR, str(i)) if i == 11
        else unit(OPERATOR, str(i), 0.05 * (i + 1) + 0.01 * n, share=0.9, baselines={"production": 20.0})
        for i in range(SHAPES)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Three sets of models, one of them with more tools, and one of hostile names."""
    folder = tmp_path_factory.mktemp("runs")
    for n, policy in enumerate(("default", "default", "extended")):
        made = write_generation(
            folder / "made" / str(n), [generated(OPERATOR, output=1000 * (n + 1))], about(model=f"m-{n}", policy=policy)
        )
        judged(folder / "runs" / str(n), {f"{made}/sample-0": units(n)})
    hostile = [
        unit(OPERATOR, HOSTILE, 0.5, share=0.2, baselines={HOSTILE: 3.0}),
        failed("runtime", "exception", HOSTILE, HOSTILE, log=HOSTILE),
    ]
    hostile[1].verdict.reason = HOSTILE
    judged(folder / "runs" / "hostile", {HOSTILE: hostile}, argv=[HOSTILE], device_name=HOSTILE)
    out = tmp_path_factory.mktemp("site") / "site"
    write_pages(study(find_sets([folder])), out)
    return out


def test_every_page_opens_from_disk_without_a_fault_or_a_network(window, site):
    pages = sorted(site.rglob("*.html"))
    for path in pages:
        page = window.open(path.as_uri())
        assert page.evaluate("[...document.querySelectorAll('.canvas')].every(c => c.querySelector('.main-svg'))")
    assert window.faults == []
    assert len(pages) >= 15 and all(url.startswith(("file:", "data:")) for url in window.asked)


def test_hostile_text_stays_text_on_pages_and_in_plots(window, site):
    said = 0
    for path in sorted(site.rglob("*.html")):
        page = window.open(path.as_uri())
        assert "owned" not in page.title().replace(HOSTILE, "")
        assert page.locator("main img, main b, main script:not([type='application/json'])").count() == 0
        assert page.locator(".canvas a, .canvas tspan[style*='bold']").count() == 0
        said += HOSTILE in page.locator("main").inner_text()
    assert window.faults == [] and said >= 5


def test_plots_have_a_point_for_every_unit(window, site):
    page = window.open((site / "operators" / f"{OPERATOR}.html").as_uri())
    assert sorted(page.evaluate(POINTS, "s-by-shape")) == [1, 11, 11, 11]
    names = page.evaluate("document.getElementById('roofline-h200').querySelector('.canvas').data.map(t => t.name)")
    roofline = dict(zip(names, page.evaluate(POINTS, "roofline-h200"), strict=True))
    assert [roofline[f"claude m-{n}"] for n in range(3)] == [11, 11, 11]
    assert roofline["roofline of each shape"] == 11
    drawn = page.evaluate("document.querySelectorAll('#s-by-shape .scatterlayer .point').length")
    assert drawn == 34


def test_a_point_leads_to_the_record_of_its_unit(window, site):
    page = window.open((site / "operators" / f"{OPERATOR}.html").as_uri())
    page.locator("#s-by-shape").scroll_into_view_if_needed()
    point = page.locator("#s-by-shape .scatterlayer .trace").first.locator(".point").nth(10)
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.locator("#s-by-shape .hoverlayer .hovertext").first.wait_for()
    with page.expect_navigation():
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("body[data-drawn]")
    assert page.url.endswith("#u-10")
    record = json.loads(page.locator("details#u-10[open] pre").inner_text())
    assert (record["operator"], record["shape"]) == (OPERATOR, "10")


def test_rows_are_filtered_by_words_and_by_menu(window, site):
    page = window.open((site / "operators" / f"{OPERATOR}.html").as_uri())
    count = page.locator("#verdicts .count")
    expect(count).to_have_text("37 of 37 rows")
    page.locator("#verdicts select").nth(1).select_option("runtime: numeric_mismatch")
    expect(count).to_have_text("3 of 37 rows")
    page.locator("#verdicts input").fill("m-1 made up")
    expect(count).to_have_text("1 of 37 rows")
    expect(page.locator("#verdicts tbody tr:visible")).to_have_count(1)


def test_columns_sort_by_value_and_by_keyboard(window, site):
    page = window.open((site / "operators" / f"{OPERATOR}.html").as_uri())
    head = page.locator("#verdicts th", has_text=re.compile(r"^S$"))
    head.locator("button").focus()
    for key, direction, reverse in (("Enter", "descending", True), ("Space", "ascending", False)):
        page.keyboard.press(key)
        expect(head).to_have_attribute("aria-sort", direction)
        shown = page.locator("#verdicts tbody td:nth-child(5)").all_inner_texts()
        values = [float(text) for text in shown if text != "-"]
        assert values == sorted(values, reverse=reverse)
        assert shown[-3:] == ["-"] * 3  # what was not measured is last either way


def test_a_figure_leads_step_by_step_to_its_record(window, site):
    page = window.open((site / "boards.html").as_uri())
    page.locator("main a", has_text="claude m-1").first.click()
    page.locator("#operators a", has_text=OPERATOR).click()
    page.locator("#units a", has_text="numeric_mismatch").click()
    record = json.loads(page.locator("details#u-11[open] pre").inner_text())
    assert record["verdict"]["reason"] == "made up numeric_mismatch"
    assert window.faults == []


def test_the_theme_is_the_readers_and_plots_follow_it(window, site):
    window.page.emulate_media(color_scheme="dark")
    page = window.open((site / "index.html").as_uri())
    colour = "document.querySelector('.canvas').layout.font.color"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"
    dark = page.evaluate(colour)
    page.get_by_role("button", name="Light colours").press("Enter")
    page.wait_for_function(f"{colour} !== '{dark}'")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_a_narrow_window_does_not_scroll_sideways(window, site):
    window.page.set_viewport_size({"width": 390, "height": 800})
    for path in sorted(site.rglob("*.html")):
        page = window.open(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path


def test_data_beside_a_table_hold_its_rows(window, site):
    page = window.open((site / "operators" / f"{OPERATOR}.html").as_uri())
    link = page.locator("#verdicts .data a").get_attribute("href")
    lines = (site / "operators" / link).resolve().read_text().splitlines()
    assert len(lines) - 1 >= page.locator("#verdicts tbody tr").count() == 37
