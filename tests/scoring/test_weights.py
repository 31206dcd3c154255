import json
from pathlib import Path

import pytest

from atrex.errors import UserError
from atrex.scoring.published import PUBLISHED_SHAPES
from atrex.scoring.weights import published_weights, read_weights

GOLDEN = Path(__file__).parents[3] / "shared" / "golden" / "operators.json"
KNOWN = ("a", "b")


def written(tmp_path, text):
    path = tmp_path / "weights.json"
    path.write_text(text)
    return path


def test_weights_are_normalized_with_a_note(tmp_path):
    weights = read_weights(written(tmp_path, '{"a": 1, "b": 3}'), KNOWN)
    assert weights.values == {"a": 0.25, "b": 0.75}
    assert weights.notes == ["weights.json: weights sum to 4, normalized to 1"]


def test_an_operator_left_out_weighs_nothing_and_is_counted(tmp_path):
    weights = read_weights(written(tmp_path, '{"a": 1.0}'), KNOWN)
    assert weights.values == {"a": 1.0} and weights.notes == ["weights.json: 1 of 2 operators not named, weight 0"]


@pytest.mark.parametrize(("text", "names"), [
    ("{", "not JSON"),
    ("[1]", "expected a JSON object"),
    ("{}", "expected a JSON object"),
    ('{"x": 1}', "x: unknown operator"),
    ('{"a": -1}', "a: weight -1, expected a finite number of at least 0"),
    ('{"a": true}', "a: weight true"),
    ('{"a": "1"}', 'a: weight "1"'),
    ('{"a": NaN}', "a: weight NaN"),
    ('{"a": Infinity}', "a: weight Infinity"),
    ('{"a": 0}', "the weights sum to 0"),
    ('{"a": 1, "a": 2}', "a: stands twice"),
])
def test_a_bad_file_names_file_and_field(tmp_path, text, names):
    path = written(tmp_path, text)
    with pytest.raises(UserError) as e:
        read_weights(path, KNOWN)
    assert str(e.value).startswith(f"{path}: ") and names in str(e.value) and "\n" not in str(e.value)


def test_a_missing_file_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_weights(tmp_path / "none.json", KNOWN)


@pytest.mark.skipif(not GOLDEN.exists(), reason="the published figures are not here")
def test_published_counts_and_weights_are_the_published_ones():
    golden = json.loads(GOLDEN.read_text())
    assert dict(PUBLISHED_SHAPES) == {name: len(entry["units"]) for name, entry in golden.items()}
    assert published_weights().values == pytest.approx({name: entry["weight"] for name, entry in golden.items()})
