"""What the suite says about its operators: regime and arithmetic intensity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from atrex.errors import UserError
from atrex.problems.load import load_suite, suite_hash
from atrex.problems.stats import OperatorStats, suite_stats
from atrex.report.study.sets import CandidateSet


@dataclass(frozen=True)
class Facts:
    """Figures of the suite by operator, `{}` where it is not here, and notes on whether it is the one judged."""

    operators: dict[str, OperatorStats]
    notes: list[str] = field(default_factory=list)


def suite_facts(group: Sequence[CandidateSet], given: Path | None = None) -> Facts:
    """The facts of the suite that a group was judged on, looked for where its run.json says, or in `given`.

    A suite `given` that cannot be read raises UserError; one that is gone leaves no facts and a note.
    """
    run = group[0].run.run
    said = run.get("suite")
    path = given or (Path(said) if said and said != "shipped" else None)
    try:
        stats = suite_stats(load_suite(path))
    except UserError as error:
        if given is not None:
            raise
        return Facts({}, [f"no regimes: the suite that was judged is not here ({error}); give it with --suite"])
    notes = []
    if run.get("suite_hash") not in (None, suite_hash(path)):
        notes.append(
            f"regimes and intensities are those of {path or 'the shipped suite'} as it is now; the one that was judged "
            f"differs (version {run.get('suite_version')}, hash {str(run.get('suite_hash'))[:12]})"
        )
    return Facts({row.operator: row for row in stats.operators}, notes)
