import json
from pathlib import Path

import pytest
from synthetic import unit

from atrex.scoring.aggregate import summarize
from atrex.scoring.published import PUBLISHED_SHAPES
from atrex.scoring.units import s_j
from atrex.scoring.weights import published_weights

GOLDEN = Path(__file__).parents[3] / "shared" / "golden" / "operators.json"


@pytest.mark.skipif(not GOLDEN.exists(), reason="the published figures are not here")
def test_the_deployed_kernels_score_what_their_published_times_say():
    records = [
        unit(operator, shape, s_j(1000 * entry["sol_ms"]["XPU-A"], entry["production_us"]["XPU-A"]))
        for operator, operator_entry in json.loads(GOLDEN.read_text()).items()
        for shape, entry in operator_entry["units"].items()
    ]
    summary = summarize(records, published_weights().values, PUBLISHED_SHAPES)
    assert summary.shapes_run == 440
    assert round(summary.s_agg, 4) == round(summary.s_agg_strict, 4) == 0.1304
