"""Accounts, secrets, prompts and targets, each alone."""

from __future__ import annotations

import json
import time

import pytest

from atrex.agents.events import Message, Output, ToolCall, Usage
from atrex.agents.jail import NoJail
from atrex.dsls.base import get, names
from atrex.errors import UserError
from atrex.generate.accounting import Account, Budget
from atrex.generate.prompt import prompt, template_hash
from atrex.generate.target import target
from atrex.generate.transcript import Redactor, Transcript, read
from atrex.generate.workspace import lay_out
from atrex.problems.load import load_suite


@pytest.fixture(scope="module")
def suite():
    return load_suite()


class TestAccount:
    def test_usage_is_summed_over_replies(self):
        account = Account(Budget())
        for _ in range(3):
            account.add(Usage(input=10, output=5, cached=4, reasoning=2, cost_usd=0.5))
        assert (account.usage.input, account.usage.output, account.usage.cached) == (30, 15, 12)
        assert account.cost_usd == 1.5 and account.told == 3

    def test_turns_and_tools_are_counted(self):
        account = Account(Budget())
        for event in (Message(role="agent", text=""), Message(role="supervisor", text=""), ToolCall(id="1", tool="x")):
            account.add(event)
        assert (account.turns, account.tool_calls) == (1, 1)

    @pytest.mark.parametrize(
        ("budget", "usage", "said"),
        [
            (Budget(tokens=100), Usage(input=90, output=10), "100 tokens"),
            (Budget(tokens=100), Usage(input=90, output=9), None),
            (Budget(usd=1.0), Usage(input=1, cost_usd=1.0), r"\$1"),
            (Budget(usd=1.0), Usage(input=1, cost_usd=0.9), None),
            (Budget(usd=1.0), Usage(input=1), "price is not known"),
        ],
    )
    def test_a_budget_ends_it(self, budget, usage, said):
        account = Account(budget)
        account.add(usage)
        over = account.over()
        assert (over is None) if said is None else said.replace("\\", "") in over

    def test_a_cost_that_is_known_of_some_replies_only_is_not_known(self):
        account = Account(Budget())
        account.add(Usage(input=1, cost_usd=1.0))
        account.add(Usage(input=1))
        assert account.cost_usd is None


class TestTranscript:
    def test_secrets_do_not_reach_the_file(self, tmp_path):
        key = 'sk-"very\\secret'
        with Transcript(tmp_path / "t.jsonl", Redactor([key])) as transcript:
            transcript.add(Output(stream="out", text=f"key={key};"))
            transcript.add(ToolCall(id="1", tool="shell", arguments={"env": {"KEY": key}}))
        text = (tmp_path / "t.jsonl").read_text()
        assert "very" not in text and text.count("[secret]") == 2
        assert [event.kind for _, event in read(tmp_path / "t.jsonl")] == ["output", "tool_call"]

    def test_a_short_word_is_no_secret(self):
        assert Redactor(["a"]).clean("banana") == "banana"

    def test_a_line_that_is_no_event_is_named(self, tmp_path):
        (tmp_path / "t.jsonl").write_text(json.dumps({"t": 0, "kind": "nonsense"}) + "\n")
        with pytest.raises(UserError, match=r"t.jsonl:1: not an event"):
            list(read(tmp_path / "t.jsonl"))


class TestPrompt:
    @pytest.mark.parametrize("dsl", names())
    def test_every_dsl_has_one_with_its_rules_and_a_primer(self, suite, dsl):
        aim = target(dsl, None, None)
        text = prompt(suite.problem("rms_norm"), dsl, aim).text
        assert aim.name in text and get(dsl).constraints in text and "class Model(torch.nn.Module)" in text

    def test_what_is_written_in_place_is_said(self, suite):
        text = prompt(suite.problem("reshape_and_cache"), "cpp", target("cpp", None, None)).text
        assert "updates key_cache, value_cache in place" in text

    def test_nothing_of_the_evaluator_is_in_it(self, suite):
        for problem in suite.problems.values():
            text = prompt(problem, "triton", target("triton", None, None)).text.lower()
            assert not [
                word for word in ("roofline", "weight file", "held-out", "held_out", "metadata") if word in text
            ]

    def test_the_hash_is_of_the_dsl_and_not_of_the_problem(self, suite):
        one, two = (prompt(suite.problem(op), "cpp", target("cpp", None, None)) for op in ("rms_norm", "l2_norm"))
        assert one.sha256 == two.sha256 == template_hash("cpp") != template_hash("triton") and one.text != two.text


class TestTarget:
    def test_an_architecture_means_its_chip_with_most_bandwidth(self):
        assert target("triton", "sm_90", None).chip == "H200" and target("triton", "gfx942", None).chip.startswith(
            "MI3"
        )

    def test_a_chip_is_taken_as_it_is(self):
        assert target("triton", None, "MI355X").arch == "gfx950"

    @pytest.mark.parametrize(
        ("dsl", "arch", "chip", "said"),
        [
            ("triton", "sm_75", None, "compiles for"),
            ("triton", "gfx942", "H200", "H200 is sm_90"),
            ("flydsl", "sm_90", None, "compiles for"),
            ("cpp", None, "H200", "this CPU"),
        ],
    )
    def test_what_cannot_be_is_one_line(self, dsl, arch, chip, said):
        with pytest.raises(UserError, match=said):
            target(dsl, arch, chip)


def test_a_service_that_will_not_know_better_is_not_asked_again(tmp_path, suite):
    from atrex.agents.base import Choice
    from atrex.agents.events import Ended
    from atrex.agents.jail import Terms
    from atrex.generate.solve import Solver, Work

    class Refused:
        asked, keeps_usd = 0, False

        def terms(self, task):
            return Terms()

        def secrets(self):
            return ()

        def work(self, task, jail):
            self.asked += 1
            yield Ended(how="provider", reason="no such key", again=self.asked < 2)

    agent = Refused()
    work = Work(tmp_path, agent, Choice("refused"), "cpp", target("cpp", None, None), "default", Budget())
    record = Solver(work, back_off=(0.0,) * 5).solve(suite.problem("rms_norm"), 0)
    assert agent.asked == 2 and record.ended == "provider" and record.attempts == 2


class TestWorkspaceOfASecondAttempt:
    """A model's service failed in the middle, and the agent is asked again."""

    @pytest.fixture
    def root(self, tmp_path, suite):
        lay_out(tmp_path / "root", suite.problem("rms_norm"), "the task")
        return tmp_path / "root"

    def again(self, root, suite):
        lay_out(root, suite.problem("rms_norm"), "the task", keep=True)

    def test_what_it_has_written_stays(self, root, suite):
        (root / "workspace" / "candidate.py").write_text("half a kernel")
        self.again(root, suite)
        assert (root / "workspace" / "candidate.py").read_text() == "half a kernel"

    def test_what_it_was_given_is_as_it_was(self, root, suite):
        shown = root / "workspace" / "reference.py"
        before = shown.read_text()
        shown.write_text("changed")
        (root / "workspace" / "PROMPT.md").unlink()
        self.again(root, suite)
        assert shown.read_text() == before and (root / "workspace" / "PROMPT.md").read_text() == "the task\n"

    def test_a_link_in_place_of_a_file_is_not_written_through(self, root, suite, tmp_path):
        outside = tmp_path / "outside"
        outside.write_text("mine")
        shown = root / "workspace" / "reference.py"
        shown.unlink()
        shown.symlink_to(outside)
        self.again(root, suite)
        assert outside.read_text() == "mine" and not shown.is_symlink()

    def test_its_home_is_a_new_one(self, root, suite):
        (root / "home").mkdir()
        (root / "home" / "left").write_text("")
        self.again(root, suite)
        assert not (root / "home" / "left").exists()


def test_a_problem_asked_again_goes_on_with_what_is_there(tmp_path, suite):
    from atrex.agents.base import Choice
    from atrex.agents.events import Ended
    from atrex.agents.jail import Terms
    from atrex.generate.solve import Solver, Work

    class Interrupted:
        keeps_usd, asked = False, 0

        def terms(self, task):
            return Terms()

        def secrets(self):
            return ()

        def work(self, task, jail):
            self.asked += 1
            if self.asked == 1:
                (jail.workspace / "candidate.py").write_text("class Model: pass")
                yield Ended(how="provider", reason="overloaded")
            else:
                yield Ended(how="done")

    work = Work(tmp_path, Interrupted(), Choice("i"), "cpp", target("cpp", None, None), "default", Budget())
    record = Solver(work, back_off=(0.0,)).solve(suite.problem("rms_norm"), 0)
    assert (record.ended, record.attempts) == ("done", 2) and record.candidate_sha256


def test_an_interrupt_ends_an_agent_that_is_about_to_start(tmp_path, suite):
    from atrex.agents.base import Choice
    from atrex.agents.jail import Terms
    from atrex.generate.solve import Solver, Stopped, Work

    class Slow:
        keeps_usd = False

        def terms(self, task):
            return Terms()

        def secrets(self):
            return ()

        def work(self, task, jail):
            solver.stop()
            jail.start(["/bin/sleep", "1000"])
            yield from jail.lines(task.deadline)

    budget = Budget(seconds=20.0)
    solver = Solver(Work(tmp_path, Slow(), Choice("slow"), "cpp", target("cpp", None, None), "default", budget))
    began = time.monotonic()
    with pytest.raises(Stopped):
        solver.solve(suite.problem("rms_norm"), 0)
    assert time.monotonic() - began < 15


def test_a_machine_without_a_jail_is_no_result_of_the_agent(tmp_path, suite, monkeypatch):
    from atrex.agents.base import Choice
    from atrex.agents.command import Command
    from atrex.agents.jail import Jail
    from atrex.generate.solve import Solver, Work

    monkeypatch.setattr(Jail, "_agree", lambda *_: (_ for _ in ()).throw(NoJail("no namespaces")))
    agent = Command(Choice("command", "true"))
    solver = Solver(Work(tmp_path, agent, Choice("command"), "cpp", target("cpp", None, None), "default", Budget()))
    with pytest.raises(UserError, match="cannot be confined here: no namespaces"):
        solver.solve(suite.problem("rms_norm"), 0)
    assert not (tmp_path / "sample-0").exists()


def test_no_attempt_begins_without_dollars(tmp_path, suite):
    from atrex.agents.base import Choice
    from atrex.agents.events import Cost, Ended
    from atrex.agents.jail import Terms
    from atrex.generate.solve import Solver, Work

    class Spender:
        keeps_usd, asked = True, []

        def terms(self, task):
            return Terms()

        def secrets(self):
            return ()

        def work(self, task, jail):
            self.asked.append(task.budget_usd)
            yield Cost(usd=0.6)
            yield Ended(how="provider", reason="overloaded")

    agent, budget = Spender(), Budget(usd=1.0)
    work = Work(tmp_path, agent, Choice("s"), "cpp", target("cpp", None, None), "default", budget)
    record = Solver(work, back_off=(0.0,) * 5).solve(suite.problem("rms_norm"), 0)
    assert agent.asked == [1.0, pytest.approx(0.4)] and record.ended == "budget" and record.cost_usd == 1.2
