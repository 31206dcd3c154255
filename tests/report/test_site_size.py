"""Pages of a large report: their weight, and the time that they take."""

import time

import pytest
from many import write_many

from atrex.report.site.whole import write_whole
from atrex.report.study.document import study
from atrex.report.study.sets import find_sets

SETS, UNITS = 20, 500


@pytest.mark.slow
def test_500_units_of_20_sets_take_less_than_10_seconds_and_no_page_over_3_megabytes(tmp_path):
    folder = write_many(tmp_path / "many", SETS)
    found = find_sets([folder])
    assert [len(s.records) for s in found.sets] == [UNITS] * SETS
    # The time of this process: what others do with the cores meanwhile is not the report's.
    before = time.process_time()
    site = write_whole(tmp_path / "site", study(found), [])
    seconds = time.process_time() - before
    weights = {path: size for path, size in site.written.items() if path.endswith(".html")}
    heaviest = max(weights, key=weights.get)
    print(f"{len(weights)} pages, {seconds:.1f} s, heaviest {heaviest} {weights[heaviest] / 1e6:.2f} MB")
    assert weights[heaviest] < 3_000_000
    assert seconds < 10
