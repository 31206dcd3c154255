"""`atrex report` over all there is: one site, each argument recognised, no link that leads nowhere."""

import json
import re
import shutil
from html import unescape
from urllib.parse import unquote, urldefrag

import pytest
import typer
from synthetic import unit, write_run
from tests.optimize.lab import kernel
from tests.report.made import HOSTILE, full_campaign, new_campaign, trace_set
from typer.testing import CliRunner

from atrex.cli.report import report
from atrex.errors import UserError

pytest.importorskip("plotly", reason="needs atrex[report]")
pytest.importorskip("polars", reason="needs atrex[traces]")
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

app = typer.Typer()
app.command()(report)


def run(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    write_run(folder / "runs" / "one", [unit(shape=str(n), share=0.9) for n in range(3)])
    full_campaign(folder / "campaign", HOSTILE)
    trace_set(folder / "traces", HOSTILE)
    out = folder / "site"
    assert run(folder / "runs", folder / "campaign", folder / "traces", "--out", out).exit_code == 0
    return out


def test_each_argument_has_its_pages_under_one_navigation(site):
    for path in ("boards.html", "campaigns/campaign/index.html", "traces/traces/index.html", "chips/chip-h200.html",
                 "wiki/playbook-rms-norm.html"):  # fmt: skip
        text = (site / path).read_text()
        nav = text[text.index("<nav") : text.index("</nav>")]
        assert [name for name in ("Leaderboards", "Campaigns", "Traces", "Chips", "Wiki") if name not in nav] == []


def test_no_link_leads_nowhere(site):
    pages = {path: path.read_text() for path in site.rglob("*.html")}
    ids = {path: set(map(unescape, re.findall(r'\sid="([^"]*)"', text))) for path, text in pages.items()}
    broken = []
    for path, text in pages.items():
        for href in map(unescape, re.findall(r'(?:href|src)="([^"]*)"', text)):
            if href.startswith(("https://", "http://", "data:")):
                continue
            target, fragment = urldefrag(href)
            to = (path.parent / unquote(target)).resolve() if target else path
            if not to.exists() or (fragment and to in ids and unquote(fragment) not in ids[to]):
                broken.append(f"{path.relative_to(site)}: {href}")
    assert broken == []


def test_what_is_shown_can_be_had_as_data(site):
    document = json.loads((site / "data/campaigns/campaign/campaign.json").read_text())
    rows = (site / "data/campaigns/campaign/iterations.csv").read_text().splitlines()
    assert len(rows) == 1 + len(document["iterations"]) == 7
    assert json.loads((site / "data/traces/traces/traces.json").read_text())["time"]["total_ns"] > 0


def test_a_record_stands_beside_the_pages_as_it_is(site):
    original = site.parent / "campaign" / "memory" / "0001.json"
    assert (site / "campaigns/campaign/records/memory/0001.json").read_bytes() == original.read_bytes()


def test_pages_alone_need_a_folder(tmp_path):
    supervisor, campaign = new_campaign(tmp_path / "campaign")
    supervisor.advance()
    supervisor.submit(kernel())
    with pytest.raises(UserError, match="--out: expected a folder"):
        run(campaign.path)


def test_an_argument_that_is_nothing_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"holds nothing to report on: expected a run \(run.json\), a campaign"):
        run(tmp_path, "--out", tmp_path / "site")


def test_campaigns_of_one_name_have_pages_of_their_own(tmp_path):
    for place in ("a", "b"):
        new_campaign(tmp_path / place / "campaign")
    run(tmp_path / "a", tmp_path / "b", "--out", tmp_path / "site")
    assert len(list((tmp_path / "site" / "campaigns").glob("*/index.html"))) == 2
