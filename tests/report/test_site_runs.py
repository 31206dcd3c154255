"""The site of some runs: what its pages say, and that every figure leads to what it comes from."""

import csv
import hashlib
import json
import posixpath
import re
from html import unescape
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest
from studies import about, generated, judged, write_generation, write_pages
from synthetic import error, failed, unit

from atrex.report.site.entries import Entries
from atrex.report.site.whole import write_whole
from atrex.report.study.document import pair_study, study
from atrex.report.study.sets import find_sets

OPERATOR = "mla_decode_attention"
HOSTILE = "</script><script>document.title='owned'</script><b onclick=x>\"'{{ 7*7 }}"


class Page(HTMLParser):
    """Links, ids and text of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.links, self.ids, self.words = [], [], []
        self.feed(text)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found[key] for key in ("href", "src") if key in found]

    def handle_data(self, data):
        self.words.append(data)


def mla(*s, **fields):
    return [
        failed("runtime", "numeric_mismatch", OPERATOR, str(i), **fields) if each is None
        else unit(OPERATOR, str(i), each, share=0.7, **fields)
        for i, each in enumerate(s)
    ]  # fmt: skip


def made(tmp_path, *paths):
    write_pages(study(find_sets(paths)), tmp_path / "site")
    return tmp_path / "site"


def pages(site):
    return {str(p.relative_to(site)): Page(p.read_text()) for p in sorted(site.rglob("*.html"))}


@pytest.fixture
def three(tmp_path):
    """Three sets of a model each, one with more tools than the others, all on one operator."""
    for name, policy, s in (("m-1", "default", (0.1, 0.2, None)), ("m-2", "default", (0.5, 0.6, 0.7)),
                            ("m-3", "extended", (0.9, None, None))):  # fmt: skip
        folder = write_generation(tmp_path / "made" / name, [generated(OPERATOR)], about(model=name, policy=policy))
        judged(tmp_path / "runs" / name, {f"{folder}/sample-0": mla(*s, baselines={"production": 20.0})})
    return made(tmp_path, tmp_path / "runs")


def test_every_link_leads_to_a_page_a_place_in_it_or_a_file(three, tmp_path):
    # Over the whole site: cards, chips and runs lead to each other.
    write_whole(three, study(find_sets([tmp_path / "runs"])), [])
    found = pages(three)
    broken = []
    for path, page in found.items():
        assert len(page.ids) == len(set(page.ids)), path
        for link in page.links:
            if link.startswith(("data:", "https://", "http://")):
                continue
            target, _, fragment = link.partition("#")
            there = posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(target))) if target else path
            if not (three / there).is_file() or (fragment and unquote(fragment) not in found[there].ids):
                broken.append((path, link))
    assert not broken


def test_every_table_and_plot_has_its_data_beside_it(three):
    for path in three.rglob("*.html"):
        text = path.read_text()
        for part in re.findall(r'<(?:section class="table"|figure class="plot").*?</(?:section|figure)>', text, re.S):
            assert 'class="data"' in part, (path, part[:200])


def test_tools_and_optimizer_have_boards_of_their_own(three):
    text = pages(three)["boards.html"].text
    default, extended, optimizer = (text.index(t) for t in ("Default tools", "Extended tools", "Optimizer-augmented"))
    assert default < text.index("claude m-2", default) < text.index("claude m-1", default) < extended
    assert extended < text.index("claude m-3", extended) < optimizer
    assert "claude" not in text[optimizer:]


def test_what_a_campaign_accepted_is_on_the_optimizers_board(tmp_path):
    path = judged(tmp_path / "run", {"k": mla(0.1, 0.2, 0.3)})
    made_study = study(find_sets([path]))
    assert [e.board for e in Entries(made_study).all] == ["given"]
    assert [e.board for e in Entries(made_study, optimized={"0" * 64}).all] == ["optimizer"]


def test_the_second_of_a_pair_is_on_the_optimizers_board_and_its_table_leads_to_units(tmp_path):
    a, b = (judged(tmp_path / name, {name: mla(0.1, s, 0.3)}) for name, s in (("a", 0.1), ("b", 0.2)))
    write_pages(pair_study(a, b, (), None), tmp_path / "site")
    found = pages(tmp_path / "site")
    text = found["boards.html"].text
    optimizer, given = text.index("Optimizer-augmented"), text.index("Given kernels")
    assert optimizer < text.index("1 b ") < given < text.index("1 a ")
    rows = csv.DictReader((tmp_path / "site" / "data" / "boards.csv").open())
    assert [(row["board"], row["set"]) for row in rows] == [("optimizer", "b"), ("given", "a")]
    assert "sets/b/mla_decode_attention.html#u-1" in found["optimizer.html"].links


def test_a_verdict_stands_with_its_reason_and_leads_to_its_record(tmp_path):
    path = judged(tmp_path / "run", {"k": mla(0.1, 0.2, None)})
    found = pages(made(tmp_path, path))
    operator, units = found[f"operators/{OPERATOR}.html"], found[f"sets/k/{OPERATOR}.html"]
    assert "runtime: numeric_mismatch" in operator.text and "made up numeric_mismatch" in operator.text
    assert f"../sets/k/{OPERATOR}.html#u-2" in operator.links
    assert "u-2" in units.ids and '"category": "numeric_mismatch"' in units.text


def test_the_records_beside_a_page_are_those_of_the_run(tmp_path):
    path = judged(tmp_path / "run", {"k": mla(0.1, 0.2, None)})
    site = made(tmp_path, path)
    kept = (site / "data" / "sets" / "k" / f"{OPERATOR}.jsonl").read_text()
    assert [json.loads(line) for line in kept.splitlines()] == [
        json.loads(line) for line in (path / "units.jsonl").read_text().splitlines()
    ]


def test_an_operator_is_shown_with_its_definition_shapes_and_points(tmp_path):
    path = judged(tmp_path / "run", {"k": mla(0.1, 0.2, None, baselines={"production": 20.0})})
    site = made(tmp_path, path)
    text = pages(site)[f"operators/{OPERATOR}.html"].text
    assert "class Model(nn.Module)" in text and "production" in text and "20.00" in text
    plots = dict(re.findall(r'<figure class="plot" id="([^"]+)".*?<script type="application/json">(.*?)</script>',
                            (site / "operators" / f"{OPERATOR}.html").read_text(), re.S))  # fmt: skip
    roofline = {t["name"]: t for t in json.loads(plots["roofline-h200"])["traces"]}
    assert len(roofline["k"]["x"]) == 2 and len(roofline["roofline of each shape"]["x"]) == 2
    (s,) = json.loads(plots["s-by-shape"])["traces"]
    assert (s["x"], s["y"]) == (["0", "1"], [0.1, 0.2])


def test_points_lie_under_the_roofline_by_their_s(tmp_path):
    path = judged(tmp_path / "run", {"k": mla(0.1, 0.2, 0.3)})
    text = (made(tmp_path, path) / "operators" / f"{OPERATOR}.html").read_text()
    found = re.search(r'id="roofline-h200".*?<script type="application/json">(.*?)</script>', text, re.S)[1]
    traces = {t["name"]: t for t in json.loads(found)["traces"]}
    ours = sorted(zip(traces["k"]["x"], traces["k"]["y"], strict=True))
    roof = sorted(zip(traces["roofline of each shape"]["x"], traces["roofline of each shape"]["y"], strict=True))
    shares = sorted(y / top for (_, y), (_, top) in zip(ours, roof, strict=True))
    assert shares == pytest.approx([0.1, 0.2, 0.3], rel=1e-3)


def test_a_source_is_shown_only_if_it_is_the_one_that_was_judged(tmp_path):
    kernel = tmp_path / "kernels" / f"{OPERATOR}.py"
    kernel.parent.mkdir()
    kernel.write_text("# the kernel itself\n")
    sha = hashlib.sha256(kernel.read_bytes()).hexdigest()
    path = judged(tmp_path / "run", {str(kernel.parent): mla(0.1, 0.2, 0.3, candidate_sha256=sha)})
    (page,) = (tmp_path / "site" / "sets").glob("*/mla*") if made(tmp_path, path) else ()
    assert "# the kernel itself" in Page(page.read_text()).text
    kernel.write_text("# changed since\n")
    made(tmp_path, path)
    text = Page(page.read_text()).text
    assert "# changed since" not in text and "is not here, or has changed since" in text


def test_units_in_error_are_said_before_anything_else(tmp_path):
    site = made(tmp_path, judged(tmp_path / "run", {"k": [error("unstable")]}))
    assert "1 unit ended in an evaluation error: figures are not sound" in pages(site)["index.html"].text


def test_sets_that_cannot_be_compared_are_not_ranked_together(tmp_path):
    judged(tmp_path / "one", {"one": mla(0.1)})
    judged(tmp_path / "two", {"two": mla(0.1, dsl="gluon")})
    found = pages(made(tmp_path, tmp_path))
    assert "not compared: two not compared with one: DSL triton and gluon" in found["index.html"].text
    assert "Ranking: group 1" in found["boards.html"].text and "Ranking: group 2" in found["boards.html"].text


def test_an_interval_is_that_of_the_samples_or_of_the_times(tmp_path):
    path = judged(tmp_path / "run", {"k": mla(0.1, 0.2, 0.3)})
    (row,) = next(t for t in study(find_sets([path])).groups[0].tables if t.name == "overview").rows
    assert row["over"] == "times" and row["correctness_low"] is None
    # A unit takes 10 us, 9.9 to 10.1.
    assert (row["s_agg_low"], row["s_agg_high"]) == pytest.approx((row["s_agg"] / 1.01, row["s_agg"] / 0.99))
    folder = write_generation(tmp_path / "made", [generated(OPERATOR), generated(OPERATOR, 1)], about(samples=2))
    judged(tmp_path / "two", {f"{folder}/sample-0": mla(0.1, 0.1, 0.1), f"{folder}/sample-1": mla(0.3, 0.3, None)})
    (row,) = next(t for t in study(find_sets([tmp_path / "two"])).groups[0].tables if t.name == "overview").rows
    assert row["over"] == "samples" and row["correctness_low"] < row["correctness"] < row["correctness_high"]
    found = pages(made(tmp_path, tmp_path / "two"))["index.html"]
    assert "pass@k" in found.text and "Figures over samples" in found.text


def test_many_records_of_one_operator_stand_on_several_pages(tmp_path):
    records = [unit(OPERATOR, str(i), 0.5, log="x" * 90_000) for i in range(25)]
    site = made(tmp_path, judged(tmp_path / "run", {"k": records}))
    found = pages(site)
    parts = [path for path in found if path.startswith(f"sets/k/{OPERATOR}")]
    assert len(parts) == 3 and max((site / p).stat().st_size for p in parts) < 3_000_000
    anchors = [i for path in parts for i in found[path].ids if i.startswith("u-")]
    assert sorted(anchors) == sorted(f"u-{i}" for i in range(25))
    assert f"../sets/k/{OPERATOR}~3.html#u-24" in found[f"operators/{OPERATOR}.html"].links


def test_hostile_names_and_reasons_stay_text(tmp_path):
    records = [
        unit(HOSTILE, HOSTILE, 0.5, share=0.1, baselines={HOSTILE: 3.0}),
        failed("runtime", "exception", OPERATOR, HOSTILE, log=HOSTILE),
    ]
    records[1].verdict.reason = HOSTILE
    site = made(tmp_path, judged(tmp_path / "run", {HOSTILE: records}, argv=[HOSTILE], device_name=HOSTILE))
    for path in site.rglob("*.html"):
        text = path.read_text()
        scripts = re.findall(r"<script[^>]*>", text)
        assert all("src=" in s or 'type="application/json"' in s for s in scripts), path
        assert not re.search(r"<b[ >]|owned'<", text), path
    shown = (site / "operators" / f"{OPERATOR}.html").read_text()
    assert HOSTILE in unescape(shown)
