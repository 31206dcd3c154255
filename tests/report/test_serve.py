"""`atrex serve`: pages follow the files, who may ask, and what it costs."""

import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("starlette", reason="needs atrex[serve]")
pytest.importorskip("uvicorn", reason="needs atrex[serve]")
pytest.importorskip("plotly", reason="needs atrex[report]")

from serving import Served, serving
from synthetic import unit, write_run
from tests.optimize.lab import kernel
from tests.report.made import iterate, new_campaign, trace_set
from typer.testing import CliRunner

from atrex.errors import UserError
from atrex.report.site.live import RUNS, Live
from atrex.report.site.page import slug
from atrex.report.site.server import _BEAT

TOKEN = "0123456789abcdef"


def land(run, shape: str) -> None:
    """Append a unit's record, as the judge does."""
    with (run / "units.jsonl").open("a") as file:
        file.write(unit(shape=shape).model_dump_json() + "\n")


@pytest.fixture
def folder(tmp_path):
    write_run(tmp_path / "runs" / "one", [unit(shape="0")])
    return tmp_path


def test_a_unit_that_lands_is_on_the_page_and_told_to_its_readers(folder):
    with serving(folder) as served:
        assert served.ask("/")[0] == 200
        with served.events(RUNS) as events:
            assert events.readline().startswith(b"retry")
            land(folder / "runs" / "one", "1")
            lines = [events.readline() for _ in range(3)]
        assert b"event: changed\n" in lines
        status, _, text = served.ask("/data/operators.csv")
        assert status == 200 and "rms_norm" in text


def test_units_that_land_one_upon_the_other_are_all_told_of(folder):
    with serving(folder) as served, served.events(RUNS) as events:
        served.ask("/")
        began = time.monotonic()
        for shape in range(1, 5):
            land(folder / "runs" / "one", str(shape))
            while not events.readline().startswith(b"event: changed"):
                pass
            served.ask("/")
        assert time.monotonic() - began < 2 * _BEAT


def test_pages_are_built_once_for_a_state_of_the_files(folder):
    live = Live(folder, rest=0, every=0)
    for path in ("index.html", "boards.html", "index.html"):
        assert live.read(path)
    assert live.built(RUNS) == 1 and RUNS not in live.due()
    land(folder / "runs" / "one", "1")
    assert RUNS in live.due()
    live.read("index.html")
    assert live.built(RUNS) == 2 and RUNS not in live.due()


def test_a_part_that_takes_long_rests_while_its_files_go_on_changing(folder):
    live = Live(folder, rest=1e6, every=0)
    before = live.read("index.html")
    land(folder / "runs" / "one", "1")
    assert RUNS not in live.due() and live.read("index.html") == before and live.built(RUNS) == 1


def test_a_folder_with_nothing_in_it_says_so_and_fills(tmp_path):
    live = Live(tmp_path, rest=0, every=0)
    assert b"No run is below this folder" in live.read("index.html")
    write_run(tmp_path / "run", [unit()])
    assert b"No run is below this folder" not in live.read("index.html")


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_campaign_grows_on_its_page(tmp_path):
    supervisor, campaign = new_campaign(tmp_path / "work" / "campaign")
    live, at = Live(tmp_path, rest=0), f"campaigns/{slug('work/campaign')}"
    assert b"no kernel has been judged yet" in live.read(f"{at}/index.html")
    supervisor.advance()
    supervisor.submit(kernel(1.0))
    iterate(supervisor, kernel(1.5))
    assert b"promoted" in live.read(f"{at}/index.html")
    assert b"speed=1.5" in live.read(f"{at}/attempt-0001.html")
    assert b'"outcome"' in live.read(f"{at}/records/memory/0001.json")


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_damaged_campaign_is_named_and_the_others_stand(folder):
    for name in ("good", "bad"):
        supervisor, _ = new_campaign(folder / name)
        supervisor.advance()
        supervisor.submit(kernel())
    (folder / "bad" / "roofline.json").write_text("{}")
    live = Live(folder)
    listed = live.read("campaigns/index.html").decode()
    assert "bad/roofline.json" in listed and "rms_norm in cpp on cpu: good" in listed
    assert b"Leaderboards" in live.read("index.html")


def test_traces_have_their_page(tmp_path):
    pytest.importorskip("polars", reason="needs atrex[traces]")
    trace_set(tmp_path / "set")
    live = Live(tmp_path)
    assert b"no_rule_covers_this_kernel" in live.read("traces/set/index.html")
    assert b"traces/set" not in live.read("wiki/index.html")


@pytest.mark.parametrize("path", ["/nope.html", "/../units.jsonl", "/..%2f..%2fetc/passwd", "/runs/one/units.jsonl"])
def test_nothing_but_the_sites_files_is_served(folder, path):
    with serving(folder) as served:
        assert served.ask(path)[0] == 404


def test_without_a_token_a_name_that_is_not_loopback_is_refused(folder):
    with serving(folder) as served:
        for path in ("/", "/events"):
            assert served.ask(path, Host="evil.example")[0] == 403


def test_with_a_token_nobody_is_answered_without_it(folder):
    with serving(folder, TOKEN) as served:
        for path in ("/", "/events", "/data/report.json", "/assets/site.js"):
            status, _, text = served.ask(path, authorization="Bearer wrong", cookie="atrex=1")
            assert status == 401 and "rms_norm" not in text and TOKEN not in text
        assert served.ask("/", authorization=f"Bearer {TOKEN}", Host="box.lan")[0] == 200


def test_a_browser_gets_a_cookie_for_the_token(folder):
    with serving(folder, TOKEN) as served:
        assert served.ask("/enter", "POST", "token=wrong")[0] == 401
        status, headers, _ = served.ask("/enter", "POST", f"token={TOKEN}")
        cookie = headers["set-cookie"]
        assert status == 303 and "HttpOnly" in cookie and TOKEN not in cookie
        assert served.ask("/", cookie=cookie.split(";")[0])[0] == 200


def test_data_is_never_a_page(folder):
    with serving(folder) as served:
        for path, kind in (("/data/report.json", "application/json"), ("/data/main.csv", "text/csv")):
            status, headers, _ = served.ask(path)
            assert status == 200 and headers["content-type"].startswith(kind)
            assert headers["x-content-type-options"] == "nosniff" and "sandbox" in headers["content-security-policy"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere"], "nowhere: no such folder"),
        ([".", "--host", "0.0.0.0"], "give a token with --token-file or ATREX_TOKEN"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, arguments, line):
    from atrex.cli.main import app

    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["serve", *arguments, "--port", "0"])
    assert isinstance(result.exception, UserError) and line in str(result.exception)


def test_the_command_says_where_it_listens_and_ends_quietly(folder):
    command = [sys.executable, "-m", "atrex.cli.main", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        line = process.stderr.readline()
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", line)[1])
        assert Served(None, port).ask("/boards.html")[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0 and process.stderr.read() == ""
