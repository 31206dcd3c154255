"""What ships: every card and data file that the wiki reads is package data."""

import tomllib
from pathlib import Path

import pytest

import atrex

PACKAGE = Path(atrex.__file__).parent
PROJECT = PACKAGE.parents[1] / "pyproject.toml"


@pytest.mark.skipif(not PROJECT.is_file(), reason="installed, not a checkout")
def test_every_card_and_data_file_ships():
    patterns = tomllib.loads(PROJECT.read_text())["tool"]["setuptools"]["package-data"]["atrex"]
    shipped = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    folders = (PACKAGE / "wiki" / "cards", PACKAGE / "wiki" / "data", PACKAGE / "profiling" / "data")
    needed = {path for folder in folders for path in folder.rglob("*") if path.is_file()}
    assert needed and needed <= shipped
