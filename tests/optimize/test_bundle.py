"""A campaign whose device is on another machine: what travels, what comes back, and what is not taken in."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from atrex.errors import UserError
from atrex.optimize.ask import ask
from atrex.optimize.bundle import write_bundle
from atrex.optimize.lab import Pending
from atrex.optimize.machine import position
from atrex.optimize.pack import pack
from atrex.optimize.patience import GaveUp
from atrex.optimize.serve import serve
from atrex.optimize.served import ServedLab, ingest, lab_of
from atrex.optimize.store import Campaign
from tests.optimize.conftest import PLAN
from tests.optimize.lab import SayingLab, kernel


class DeviceLab(SayingLab):
    """A lab on the machine with the device: its records say what they are about."""

    def judge(self, source):
        about = {"candidate_sha256": hashlib.sha256(source.read_bytes()).hexdigest(), "chip": "cpu"}
        records = [record.model_copy(update=about) for record in super().judge(source)]
        missing = {"0", "1"} - {record.shape for record in records}
        return records + [records[0].model_copy(update={"shape": shape}) for shape in sorted(missing)]


class Two:
    """The two machines, as folders: `there` has the device."""

    def __init__(self, supervisor, campaign, tmp_path):
        self.campaign, self.supervisor, self.lab = campaign, supervisor, DeviceLab()
        self.here, self.there = tmp_path / "here", tmp_path / "there"
        self.made = 0

    def bundle(self):
        self.made += 1
        path = self.here / f"{self.made}.tar"
        write_bundle(path, *ask(self.campaign, position(self.campaign)))
        return path

    def serve(self, bundle):
        self.there.mkdir(exist_ok=True)
        moved = self.there / bundle.name
        moved.write_bytes(bundle.read_bytes())
        out = self.there / f"result-{bundle.stem}-{len(list(self.there.iterdir()))}.tar"
        serve(moved, out, make_lab=lambda settings, runs: self.lab)
        return out

    def trip(self):
        result = self.serve(self.bundle())
        assert ingest(self.campaign, result)
        return result

    def submit(self, source):
        with pytest.raises(Pending):
            self.supervisor.submit(source)

    def iterate(self, source):
        self.supervisor.plan(PLAN)
        self.submit(source)
        result = self.trip()
        return result


@pytest.fixture
def two(begin, tmp_path):
    supervisor, campaign = begin(elsewhere=True)
    supervisor.lab = ServedLab(campaign)
    return Two(supervisor, campaign, tmp_path)


def altered(path, name, change):
    """The tar file with one of its members changed, the others as they were."""
    found = {}
    with tarfile.open(path) as tar:
        for each in tar:
            found[each.name] = tar.extractfile(each).read()
    found[name] = change(found[name])
    new = path.with_name(f"altered-{path.name}")
    with tarfile.open(new, "w") as tar:
        for each, content in found.items():
            about = tarfile.TarInfo(each)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return new


def state(campaign):
    """Every file of a campaign, to see that nothing changed."""
    files = [path for path in campaign.path.rglob("*") if path.is_file() and ".git" not in path.parts]
    return {path: path.read_bytes() for path in files if path.name != ".lock"}


def test_a_kernel_is_kept_until_its_measurement_comes(two):
    assert isinstance(lab_of(two.campaign), ServedLab)
    two.submit(kernel())
    assert position(two.campaign).step == "validation" and two.campaign.memory == []
    two.trip()
    assert two.campaign.incumbent.number == 0


def test_one_way_an_iteration_does_and_promotes_what_is_faster(two):
    two.submit(kernel())
    two.trip()
    assert position(two.campaign).step == "plan"  # the evidence came with the baseline
    two.iterate(kernel(1.3))
    v = two.campaign.memory[1].validation
    assert v.outcome == "promoted" and v.low < 1.3 < v.high and position(two.campaign).step == "stop"
    two.supervisor.go_on()
    assert two.supervisor.advance().step == "plan"


@pytest.mark.parametrize(
    ("source", "outcome"),
    [(kernel(0.9), "no_gain"), (kernel(wrong=1), "failed"), (kernel(2.0, share=0.5), "fallback"),
     (kernel(1.5, flaky=1), "failed"), (kernel(3.0, slow0=4.0), "slower_shape")],
)  # fmt: skip
def test_the_supervisor_decides_as_it_would_at_the_device(two, source, outcome):
    two.submit(kernel())
    two.trip()
    two.iterate(source)
    assert two.campaign.memory[1].validation.outcome == outcome and two.campaign.incumbent.number == 0


def test_what_compiles_to_the_same_is_not_contested_on_the_device(two):
    two.submit(kernel(artifact="abc"))
    two.trip()
    two.iterate(kernel(1.5, artifact="abc"))
    assert two.campaign.memory[1].validation.outcome == "duplicate" and "contest" not in two.lab.calls


def test_a_first_kernel_that_fails_there_is_put_aside_and_another_is_asked_about(two):
    two.submit(kernel(wrong=1))
    two.trip()
    assert position(two.campaign).step == "baseline"
    two.submit(kernel())
    two.trip()
    assert two.campaign.incumbent.number == 0


def test_asking_twice_asks_the_same(two):
    two.submit(kernel())
    assert two.bundle().read_bytes() == two.bundle().read_bytes()


def test_taking_in_twice_is_harmless(two):
    two.submit(kernel())
    result = two.trip()
    before = state(two.campaign)
    assert ingest(two.campaign, result) is False and state(two.campaign) == before
    two.iterate(kernel(0.9))
    assert ingest(two.campaign, result) is False


def test_a_campaign_killed_while_it_takes_in_takes_in_again(two, monkeypatch):
    two.submit(kernel())
    result = two.serve(two.bundle())
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Campaign, "remember", lambda self, record: (_ for _ in ()).throw(KeyboardInterrupt))
        ingest(two.campaign, result)
    assert two.campaign.memory == []
    ingest(two.campaign, result)
    two.supervisor.advance()
    assert two.campaign.incumbent.number == 0 and position(two.campaign).step == "plan"


def test_an_answer_to_an_earlier_step_is_refused(two):
    two.submit(kernel())
    first = two.bundle()
    early, late = two.serve(first), two.serve(first)
    ingest(two.campaign, early)
    two.supervisor.plan(PLAN)
    two.submit(kernel(1.3))
    two.bundle()
    before = state(two.campaign)
    with pytest.raises(UserError, match="another measurement of the same bundle is in already"):
        ingest(two.campaign, late)
    assert state(two.campaign) == before


def test_an_answer_about_another_kernel_is_refused(two):
    two.submit(kernel())
    stale = two.serve(two.bundle())
    two.campaign.drop(0, "candidate")
    two.submit(kernel(2.0))
    two.bundle()
    before = state(two.campaign)
    with pytest.raises(UserError, match=r"of bundle \w{8}; the campaign asked with"):
        ingest(two.campaign, stale)
    assert state(two.campaign) == before


def test_a_kernel_changed_after_the_question_is_noticed(two):
    two.submit(kernel())
    result = two.serve(two.bundle())
    two.campaign.candidate(0).write_text(kernel(9.0))
    with pytest.raises(UserError, match="is not what was measured"):
        ingest(two.campaign, result)


def test_an_answer_for_another_campaign_is_refused(two, begin):
    two.submit(kernel())
    result = two.serve(two.bundle())
    _, other = begin("other", seed=7, elsewhere=True)
    with pytest.raises(UserError, match="for campaign"):
        ingest(other, result)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("judge.jsonl", lambda old: old.replace(b'"S":0.1', b'"S":0.9'), "judge.jsonl: not of the hash"),
        ("result.json", lambda old: old.replace(b'"device_name": "', b'"device_name": "better '), "seal does not hold"),
        ("result.json", lambda old: b"{}", "result.json: bundle: Field required"),
        ("more.json", lambda old: b"", "more.json: not listed"),
    ],
)
def test_an_altered_answer_is_refused_and_changes_nothing(two, name, change, said):
    two.submit(kernel())
    result = two.serve(two.bundle())
    with tarfile.open(result) as tar:
        if name not in tar.getnames():
            with tarfile.open(result, "a") as more:
                more.addfile(tarfile.TarInfo(name))
    before = state(two.campaign)
    with pytest.raises(UserError, match=said):
        ingest(two.campaign, altered(result, name, change))
    assert state(two.campaign) == before
    two.trip()


def test_times_forged_with_their_hashes_do_not_hold_without_the_question(two):
    two.submit(kernel())
    result = two.serve(two.bundle())
    with tarfile.open(result) as tar:
        records = tar.extractfile("judge.jsonl").read()
    forged = records.replace(b'"median_us":10.0', b'"median_us":1.0')
    assert forged != records
    path = altered(altered(result, "judge.jsonl", lambda old: forged), "result.json", lambda old: old.replace(
        hashlib.sha256(records).hexdigest().encode(), hashlib.sha256(forged).hexdigest().encode()))  # fmt: skip
    with pytest.raises(UserError, match="seal does not hold"):
        ingest(two.campaign, path)


def test_a_bundle_that_was_altered_is_not_served(two):
    two.submit(kernel())
    path = altered(two.bundle(), "candidate.py", lambda old: old + b"# faster\n")
    with pytest.raises(UserError, match="candidate.py: not of the hash"):
        two.serve(path)


def test_a_device_with_another_chip_does_not_serve(begin, tmp_path):
    supervisor, campaign = begin(elsewhere=True, chip="H200", device="cuda:0")
    supervisor.lab = ServedLab(campaign)
    machines = Two(supervisor, campaign, tmp_path)
    machines.submit(kernel())
    with pytest.raises(UserError, match="asks for H200; cpu is"):
        serve(machines.bundle(), tmp_path / "result.tar", "cpu")


def test_a_measurement_is_not_written_over(two):
    two.submit(kernel())
    bundle = two.bundle()
    result = two.serve(bundle)
    with pytest.raises(UserError, match="exists already"):
        serve(bundle, result, make_lab=lambda settings, runs: two.lab)


def test_a_step_that_needs_no_device_is_not_bundled(two):
    with pytest.raises(UserError, match="waits for a first kernel"):
        two.bundle()


@pytest.mark.parametrize("content", [b"", b"no tar at all" * 100])
def test_what_is_no_tar_is_one_clear_line(two, tmp_path, content):
    path = tmp_path / "x.tar"
    path.write_bytes(content)
    with pytest.raises(UserError, match="x.tar: "):
        ingest(two.campaign, path)


def test_the_kernel_of_a_campaign_that_has_ended_is_packed_after_a_last_measurement(two, tmp_path):
    two.submit(kernel())
    two.trip()
    two.supervisor.stop("enough")
    with pytest.raises(Pending):
        pack(two.campaign, ServedLab(two.campaign), tmp_path / "kernel.py")
    two.trip()
    packed = pack(two.campaign, ServedLab(two.campaign), tmp_path / "kernel.py")
    assert packed.path.read_text() == kernel() and len(packed.records) == 2


# Refuses to import what a machine that only serves need not have, then runs the command line.
BARE = (
    "import sys\n"
    "class Absent:\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    "        if name.split('.')[0] in ('polars', 'msgspec', 'yaml', 'pyarrow', 'jinja2'):\n"
    "            raise ImportError(name)\n"
    "sys.meta_path.insert(0, Absent())\n"
    "from atrex.cli.main import main\n"
)


def test_serving_needs_nothing_of_traces_and_cards():
    script = BARE + "import atrex.optimize.serve, atrex.optimize.look_cpu, atrex.evaluate.api, atrex.evaluate.versus\n"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0


@pytest.mark.slow
def test_from_one_folder_to_another_with_the_judge_itself(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    source = Path(__file__).parents[2] / "examples" / "candidates" / "cpp" / "rms_norm.py"

    def atrex(folder, *words):
        folder.mkdir(exist_ok=True)
        program = ["-c", BARE + "main()"] if folder == there else ["-m", "atrex.cli.main"]
        command = [sys.executable, *program, "optimize", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    atrex(here, "init", "--dir", "c", "--problem", "rms_norm", "--dsl", "cpp", "--device", "cpu", "--chip", "cpu",
          "--shapes", "0")  # fmt: skip
    assert "atrex optimize bundle" in atrex(here, "submit", "c", str(source))
    atrex(here, "bundle", "c", "q.tar")
    there.mkdir()
    (here / "q.tar").rename(there / "q.tar")
    atrex(there, "serve-bundle", "q.tar", "r.tar", "--device", "cpu")
    atrex(here, "ingest", "c", str(there / "r.tar"))
    campaign = Campaign(here / "c")
    [served] = (campaign.path / "measurements").glob("*.served.json")
    answer = json.loads(served.read_text())["answer"]
    [(commitment, secret)] = answer["seeds"].items()
    assert hashlib.sha256(bytes.fromhex(secret)).hexdigest() == commitment
    [record] = campaign.judged(0)
    if record.verdict.status == "passed":  # a busy machine may leave it unstable, and that is told then
        assert campaign.incumbent.validation.outcome == "baseline" and position(campaign).step == "plan"
    else:
        assert position(campaign).step == "baseline" and record.verdict.category == "unstable"


@pytest.mark.parametrize(("command", "status"), [("next", 0), ("plan", 2)])
def test_a_command_that_took_nothing_in_does_not_end_well_while_the_device_is_waited_for(two, command, status):
    from typer.testing import CliRunner

    from atrex.cli.optimize import app

    two.submit(kernel())
    words = [command, str(two.campaign.path), *(["--none", "all tried"] if command == "plan" else [])]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == status and "atrex optimize bundle" in found.stderr


def test_an_answer_says_where_and_with_what_it_was_measured(two):
    two.submit(kernel())
    two.trip()
    [path] = (two.campaign.path / "measurements").glob("*.served.json")
    answer = json.loads(path.read_text())["answer"]
    assert answer["device_name"] and answer["versions"]["torch"] and answer["chip"] == "cpu" and answer["judge_code"]


class GivingUpLab(DeviceLab):
    """Its contests are given up after three rounds."""

    @contextmanager
    def contest(self, incumbent, candidate):
        with super().contest(incumbent, candidate) as measure:
            left = [1, 2, 3]

            def bounded(shapes=None):
                if not left:
                    raise GaveUp("other work has the cores")
                left.pop()
                return measure(shapes)

            yield bounded


def test_a_contest_that_was_given_up_there_is_undecided_here(two):
    two.submit(kernel())
    two.trip()
    two.lab = GivingUpLab()
    two.iterate(kernel(1.5))
    found = two.campaign.memory[-1].validation
    assert (found.outcome, found.reason, found.rounds) == ("undecided", "other work has the cores", 3)
    assert found.decision == 1 and two.campaign.incumbent.number == 0
