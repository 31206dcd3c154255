"""The parts of the judge that need no worker."""

from __future__ import annotations

import socket
import statistics
import threading

import pytest
import torch

from atrex.dsls.host_time import ELSEWHERE
from atrex.errors import UserError
from atrex.evaluate.adoption import adoption, shortcut
from atrex.evaluate.bindings import Refresher
from atrex.evaluate.budgets import Budgets
from atrex.evaluate.candidates import Candidate, resolve, static_fault
from atrex.evaluate.channel import MAX_FRAME, Channel, ChannelClosed, ChannelTimeout
from atrex.evaluate.layout import ALIGNMENT, Slot, plan
from atrex.evaluate.outputs import address_range, fingerprint, overlapped, poison
from atrex.evaluate.performance import Samples
from atrex.evaluate.seeds import Seeds
from atrex.evaluate.shared_memory import Attached, HostBlock
from atrex.evaluate.stats import median_interval, percentile


class TestChannel:
    def pair(self):
        a, b = socket.socketpair()
        return Channel(a), Channel(b)

    def test_messages_larger_than_a_socket_buffer_arrive_whole_and_in_order(self):
        a, b = self.pair()
        sender = threading.Thread(target=lambda: [a.send({"i": i, "text": "x" * 300_000}) for i in range(5)])
        sender.start()
        assert [b.receive(5)[0]["i"] for _ in range(5)] == [0, 1, 2, 3, 4]
        sender.join()

    def test_a_deadline_ends_the_wait(self):
        _, b = self.pair()
        with pytest.raises(ChannelTimeout):
            b.receive(0.05)

    @pytest.mark.parametrize("raw", [(MAX_FRAME + 1).to_bytes(4, "little"), b"\x02\0\0\0[]", b"\x02\0\0\0no"])
    def test_what_is_no_frame_closes_the_channel(self, raw):
        a, b = self.pair()
        a.sock.sendall(raw)
        with pytest.raises(ChannelClosed):
            b.receive(1)


class TestMemory:
    def test_a_block_is_one_memory_on_both_sides(self):
        block = HostBlock(4096)
        spec, fds = block.export()
        import os

        other = Attached(spec, [os.dup(fds[0])], torch.device("cpu")).bytes
        block.bytes[7] = 42
        assert other[7] == 42
        block.close()

    def test_slots_are_aligned_and_do_not_overlap(self):
        tensors = {"a": torch.ones(3, 5), "b": torch.ones(7, dtype=torch.bfloat16), "c": torch.ones(0)}
        slots, nbytes = plan(tensors)
        block = torch.zeros(nbytes, dtype=torch.uint8)
        for slot in slots:
            assert slot.offset % ALIGNMENT == 0
            Slot.from_json(slot.as_json()).view(block).copy_(tensors[slot.name])
        assert all(torch.equal(s.view(block), tensors[s.name]) for s in slots)

    def test_refreshing_changes_a_few_values_and_keeps_their_distribution(self):
        x = torch.arange(10_000, dtype=torch.bfloat16).view(100, 100)
        index = torch.arange(10)
        refresher = Refresher({"x": x, "index": index}, seed=1)
        refresher.step()
        changed = (refresher.inputs["x"] != x).sum().item()
        assert 0 < changed <= Refresher.COUNT
        assert torch.equal(refresher.inputs["index"], index)
        assert torch.isin(refresher.inputs["x"], x).all()


class TestOutputs:
    def test_a_fingerprint_sees_any_changed_byte(self):
        out = {"a": torch.randn(33, 7).bfloat16()}
        before = fingerprint(out)
        out["a"][32, 6] += 1
        assert not torch.equal(before, fingerprint(out))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
    def test_poison_is_nan(self, dtype):
        t = torch.zeros(13).to(dtype)
        poison(t)
        assert t.float().isnan().all()

    def test_overlap_is_by_address(self):
        x = torch.zeros(10, 10)
        assert overlapped(x[5:], {"x": x, "y": torch.zeros(3)}) == ["x"]
        assert address_range(x.T) == address_range(x)


class TestStatistics:
    def test_the_interval_holds_the_median_of_its_distribution(self):
        import random

        rng = random.Random(0)
        hits = 0
        for _ in range(400):
            low, high = median_interval([rng.expovariate(1.0) for _ in range(30)])
            hits += low <= 0.6931 <= high
        assert hits / 400 >= 0.93

    def test_percentiles_interpolate(self):
        values = [1.0, 2.0, 3.0, 4.0]
        assert percentile(values, 50) == statistics.median(values)
        assert percentile(values, 0) == 1 and percentile(values, 100) == 4


class TestBudgets:
    def test_the_number_of_calls_is_fixed_by_the_pilot(self):
        budgets = Budgets(performance=1.0)
        assert budgets.calls(10.0) == 100
        assert budgets.calls(5_000.0) == 60
        assert budgets.calls(20_000.0) == 30
        assert budgets.calls(50_001.0) is None
        assert budgets.calls(10.0, at_most=20) == 20


class TestSeeds:
    def test_seeds_follow_from_the_secret_and_the_label(self):
        a, b = Seeds(b"one"), Seeds(b"one")
        assert a.seed("rms_norm/0", 1) == b.seed("rms_norm/0", 1) != a.seed("rms_norm/0", 2)
        assert a.commitment == b.commitment != Seeds(b"two").commitment

    def test_secrets_differ(self):
        assert Seeds().secret != Seeds().secret


class TestAdoption:
    def rows(self, **us):
        return [{"name": owner, "us": float(n), "owner": owner} for owner, n in us.items()]

    def test_the_share_is_of_all_recorded_time(self):
        found = adoption([self.rows(target=30, torch=10), self.rows(target=30, copy=10)])
        assert found.share == 0.75 and shortcut(found) is None

    def test_host_time_that_nobody_claims_names_the_shortcut_only_where_nothing_else_ran(self):
        nobody = {"name": "past the watched libraries", "us": 9.0, "owner": "unknown"}
        assert shortcut(adoption([[nobody, *self.rows(torch=1)]])) == "torch"
        assert shortcut(adoption([[nobody]])) == "substitution"

    def test_unclaimed_host_time_of_one_call_is_the_interpreter_s_of_most_calls_the_candidate_s(self):
        nobody = {"name": ELSEWHERE, "us": 90.0, "owner": "unknown"}
        mine = self.rows(target=10)
        assert adoption([[nobody, *mine], mine, mine]).share == 1.0
        assert adoption([[nobody, *mine], [nobody, *mine], mine]).share == pytest.approx(0.1)

    def test_a_time_slice_lost_on_the_host_does_not_decide_the_share(self):
        calls = [self.rows(target=20, torch=700), self.rows(target=4000, torch=700), self.rows(target=20, torch=700)]
        assert adoption(calls, host=True).share == pytest.approx(20 / 720)
        assert adoption(calls).share > 0.5

    def test_what_ran_in_one_call_alone_counts_with_its_mean_on_the_host_too(self):
        calls = [self.rows(target=20), self.rows(target=20), self.rows(target=20, torch=120)]
        assert adoption(calls, host=True).share == pytest.approx(1 / 3)

    def test_the_largest_rest_names_the_shortcut(self):
        assert shortcut(adoption([self.rows(target=1, vendor=5, torch=2)])) == "vendor"
        assert shortcut(adoption([self.rows(dsl=5, torch=2)])) == "substitution"
        assert shortcut(adoption([self.rows(copy=5)])) == "torch"

    def test_no_recorded_call_is_not_zero(self):
        assert adoption([]) is None


class TestCandidates:
    def reference(self, x, weight): ...

    def fault(self, tmp_path, source):
        path = tmp_path / "rms_norm.py"
        path.write_text(source)
        (candidate,) = resolve([str(path)], ["rms_norm"], None)
        return static_fault(candidate, type(self).reference, {"eps": 1e-6})

    @pytest.mark.parametrize(
        ("source", "says"),
        [
            ("", "empty file"),
            ("def f(:", "syntax error"),
            ("import torch\nclass Net: pass", "no Model"),
            ("class Model:\n    def forward(self, x): ...", "expected (x, weight)"),
            ("class Model:\n    def __init__(self): ...", "expected (eps)"),
        ],
    )
    def test_a_fault_is_one_line_that_names_the_file(self, tmp_path, source, says):
        _, line = self.fault(tmp_path, source)
        assert says in line and "rms_norm.py" in line and "\n" not in line

    @pytest.mark.parametrize(
        "source",
        [
            "class Model:\n    def __init__(self, eps, block=4): ...\n    def forward(self, a, b, c=None): ...",
            "class Model:\n    def __init__(self, **kw): ...\n    def forward(self, *operands): ...",
            "from somewhere import Model",
            "Model = make()",
        ],
    )
    def test_what_could_be_right_is_left_to_the_worker(self, tmp_path, source):
        assert self.fault(tmp_path, source) is None

    def test_missing_and_misnamed_candidates_are_user_errors(self, tmp_path):
        other = tmp_path / "thing.py"
        other.write_text("class Model: pass")
        for argument, says in ((str(tmp_path / "none.py"), "no such candidate"), (str(other), "no operator")):
            with pytest.raises(UserError, match=says):
                resolve([argument], ["rms_norm"], None)
        (tmp_path / "empty").mkdir()
        with pytest.raises(UserError, match="no <operator>.py"):
            resolve([str(tmp_path / "empty")], ["rms_norm"], None)


@pytest.mark.parametrize("nested", ["(" * 5000 + "1" + ")" * 5000, "-" * 100_000 + "1"], ids=["brackets", "signs"])
def test_a_source_nested_too_deeply_is_a_verdict_and_not_a_traceback(tmp_path, nested):
    source = f"x = {nested}\nclass Model: pass\n"
    candidate = Candidate(tmp_path / "rms_norm.py", "deep", "deep", "rms_norm", source)
    category, said = static_fault(candidate, lambda self, x: x, {})
    assert category == "exception" and "nested" in said


class TestSamples:
    def test_a_forward_that_no_delay_outlasts_waits_for_the_device(self):
        assert Samples(launch_us=[5200.0] * 5, delay_us=5000.0).outlasts
        assert not Samples(launch_us=[40.0, 60.0, 900.0], delay_us=200.0).outlasts

    def test_on_a_host_without_delays_nothing_waits(self):
        assert not Samples(launch_us=[0.0] * 5).outlasts
