import io

import pytest
from rich.console import Console
from synthetic import error, failed, random_suite, unit

from atrex.report import figures
from atrex.report.tables import make_console, print_run
from atrex.scoring.published import PUBLISHED_SHAPES
from atrex.scoring.weights import normalize

WEIGHTS = normalize(dict.fromkeys(PUBLISHED_SHAPES, 1.0))


def printed(records, width=120, **options):
    out = io.StringIO()
    print_run(records, WEIGHTS, PUBLISHED_SHAPES, Console(file=out, width=width), **options)
    return out.getvalue()


def row(text, *cells):
    """The cells of the one table row that holds all of `cells`."""
    found = [line.strip() for line in text.splitlines() if line.startswith("│") and all(c in line for c in cells)]
    assert len(found) == 1, found
    return [cell.strip() for cell in found[0][1:-1].split("│")]


def test_a_unit_row_shows_verdict_times_scores_and_share():
    text = printed([unit(s=0.25, attainable=0.75, share=0.5)])
    assert row(text, "passed") == ["rms_norm", "0", "passed", "10.00", "2.50", "memory", "0.250", "0.750", "50.0 %"]


def test_what_was_not_measured_is_a_dash_and_never_zero():
    assert row(printed([failed("compile", "exception")]), "rms_norm", "compile: exception")[3:] == ["-"] * 6


def test_an_operator_row_shows_counts_over_all_published_shapes():
    text = printed([unit(s=0.25), failed("runtime", "timeout", shape="1")], units=False)
    assert row(text, "rms_norm") == ["rms_norm", "2/56", "1/56", "0.250", "0.000", "-", "-", "3.3 %"]


def test_a_correct_operator_without_any_time_shows_no_s_i():
    assert row(printed([error("unstable")], units=False), "rms_norm")[3] == "-"


def test_the_summary_says_what_every_figure_is_over():
    text = printed([unit(s=0.3, share=0.9), unit(shape="h0", held_out=True)], units=False)
    text = " ".join(text.split())
    assert "S_agg 0.010 over all 30 operators, what was not run counts 0" in text
    assert "inside coverage 0.300 S_agg over the weight that was run" in text
    assert "coverage 3.3 % of the weight is in the operators that were run" in text
    assert "correct 0.1 % over all 30 operators" in text and "inside 100.0 % over what was run" in text
    assert "DSL share 90.0 % (1 of 30) mean over the operators where it was measured" in text
    assert "generalizes 1 of 1 held-out shapes correct" in text


def test_reasons_of_what_did_not_pass_are_printed():
    assert "rms_norm 0: runtime: timeout: made up timeout" in printed([failed("runtime", "timeout")])


def test_failures_are_the_published_rows_with_ours_named():
    text = printed([failed("runtime", "integrity"), failed("runtime", "numeric_mismatch", shape="1")], units=False)
    assert row(text, "numeric mismatch")[2:] == ["2 (1 integrity)", "100.0 %"]
    assert "integrity a numeric mismatch" in text


def test_errors_absent_units_and_notes_are_said():
    planned = {"planned": [["rms_norm", "0"], ["rms_norm", "1"]]}
    text = printed([error("beyond_roofline")], run=planned, notes=["a note"])
    assert "note: evaluation errors, not the candidate's failures: 1 beyond_roofline" in text
    assert "note: 1 planned unit(s) without a record" in text
    assert "note: a note" in text


def test_a_time_that_is_less_to_be_trusted_is_marked():
    timed = unit().performance.model_copy(update={
        "host_bound": True, "clocks": {"before": {"throttled": False, "locked": None}, "after": {"throttled": True}}})
    text = printed([unit(performance=timed)])
    assert row(text, "passed")[3] == "10.00 htu"
    assert "marks: h host-bound, t throttled, u clocks not known to be locked" in text
    assert "marks:" not in printed([unit()])


def test_uncertain_ceilings_are_said():
    measured = unit().roofline.model_copy(update={"uncertainty": 0.04})
    assert "note: ceilings were measured on this device, uncertain by up to 4.0 %" in printed([unit(roofline=measured)])


def test_several_candidates_end_in_a_comparison():
    text = printed([unit(candidate="a.py", s=0.9), unit(candidate="b.py", s=0.3)], units=False)
    comparison = text[text.index("Candidates"):]
    assert row(comparison, "S_agg")[1:] == ["0.030", "0.010"]
    assert row(comparison, "S  ")[1:] == ["0.900 (1 of 30)", "0.300 (1 of 30)"]


@pytest.mark.parametrize("width", [1, 20, 60])
def test_a_narrow_terminal_does_not_crash(width):
    assert printed([*random_suite(), unit(candidate="other.py")], width=width)


def test_markup_in_names_is_printed_as_it_is():
    text = printed([unit(candidate="[/red]x.py"), failed("compile", "exception", candidate="[bold]y.py")])
    assert "[/red]x.py" in text and "[bold]y.py" in text


def test_no_record_is_said():
    assert printed([]) == "no unit was recorded\n"


def test_output_that_is_no_terminal_is_120_wide(capsys):
    assert make_console().width == 120


def test_a_unit_in_one_line():
    assert figures.unit_line(unit(s=0.25)) == "rms_norm  0  passed  10.00 us  S 0.250"
    assert figures.unit_line(failed("runtime", "timeout", shape="h1", held_out=True)) == (
        "rms_norm  h1 (held-out)  runtime: timeout  made up timeout")


@pytest.mark.parametrize(("value", "text"), [
    (None, "-"), (0.0, "0.0 %"), (0.0001, "<0.1 %"), (0.9999, ">99.9 %"), (1.0, "100.0 %"), (0.123, "12.3 %")])
def test_percent_is_exact_at_its_ends(value, text):
    assert figures.percent(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (0.0, "0.000"), (0.00004, "4.0e-05"), (0.5, "0.500")])
def test_a_small_score_does_not_read_as_zero(value, text):
    assert figures.score(value) == text
