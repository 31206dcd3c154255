"""The documentation as a site: it builds without a warning, holds what it links to, loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="needs pip install 'atrex[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site: Path):
    loaded = re.compile(
        r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//|<link[^>]+rel="(?:stylesheet|preload)"[^>]+href="(?:https?:)?//'
    )
    assert [page.name for page in site.rglob("*.html") if loaded.search(page.read_text())] == []


@pytest.mark.slow
def test_every_command_has_its_section_and_options(site: Path):
    text = (site / "commands.html").read_text()
    for heading in ("atrex eval", "atrex demo", "atrex trace import", "atrex optimize run", "atrex suite validate"):
        assert re.search(rf'<h[23] id="[^"]+">{heading}', text), heading
    assert "--performance-budget" in text and "--clock-offset" in text


@pytest.mark.slow
def test_records_and_folders_that_pages_link_to_are_in_the_site(site: Path):
    assert (site / "project/results/h200-judge.json").read_bytes() == (ROOT / "results/h200-judge.json").read_bytes()
    assert "rms_norm.py" in (site / "project/examples/candidates/cpp/index.html").read_text()


def test_the_pictures_are_well_formed_and_load_nothing():
    pictures = sorted((ROOT / "docs" / "images").glob("*.svg"))
    assert pictures
    for picture in pictures:
        ET.parse(picture)
        assert not re.search(r'href="https?:|url\(["\']?https?:|@import', picture.read_text()), picture.name
