import json
import shutil
from pathlib import Path

import pytest

from atrex.problems import load_suite
from atrex.problems.load import SHIPPED


@pytest.fixture(scope="session")
def suite():
    return load_suite()


@pytest.fixture
def folder(tmp_path):
    """A copy of rms_norm cut down to two small shapes, to be broken by a test."""
    copy = tmp_path / "rms_norm"
    shutil.copytree(SHIPPED / "rms_norm", copy, ignore=shutil.ignore_patterns("__pycache__"))
    shapes = {
        sid: {"init_kwargs": {"eps": 1e-6}, "input_kwargs": {"token_count": tokens, "hidden_size": 128}}
        for sid, tokens in (("0", 3), ("1", 40))
    }
    (copy / "shapes.json").write_text(json.dumps(shapes))
    edit_json(copy / "metadata.json", lambda m: m.update(shapes={sid: {"origin": "atrex"} for sid in shapes}))
    from atrex.problems.generate import generate_roofline

    generate_roofline(copy)
    return copy


def edit_json(path: Path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
