"""The gated delta rule family: chunked references against token loops, operators in a row, wrong answers."""

import dataclasses

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from atrex.problems.compare import compare, declared, oracle
from atrex.problems.load import SHIPPED, load_problem
from atrex.problems.modules import load_module
from atrex.suite.delta import corrected, directions, log_decays, within_chunks

UPDATE, STATE, OUTPUT = (
    load_problem(SHIPPED / name)
    for name in ("gated_delta_rule_update", "chunk_gated_delta_rule_state", "chunk_delta_rule_output")
)
SHAPES = [(UPDATE, "8"), (UPDATE, "19"), (STATE, "25"), (OUTPUT, "16")]
# Small listed shapes of each, made smaller where that changes nothing but their time here.
CHEAPER = {
    (STATE.operator, "25"): {"batch_size": 2, "token_count": 150, "state_count": 4},
    (OUTPUT.operator, "16"): {"batch_size": 2, "num_q_heads": 2, "num_v_heads": 4},
}


def case(problem, shape_id, **changed):
    listed = problem.shape(shape_id)
    changed = {**CHEAPER.get((problem.operator, shape_id), {}), **changed}
    shape = dataclasses.replace(listed, input_kwargs={**listed.input_kwargs, **changed})
    inputs = problem.make_inputs(shape, 1, "cpu")
    return shape, inputs, oracle(problem, shape, inputs), declared(problem, shape, inputs)


def wide(inputs):
    return {name: t.double() if t.is_floating_point() else t for name, t in inputs.items()}


def token_loop(q, k, v, beta, g, state, carry=None, correct=True):
    """The rule token by token: q, k [B, T, H, K] as they enter, beta and log decay g [B, T, H], state [B, H, K, V]."""
    outs = []
    for t in range(v.shape[1]):
        state = state * g[:, t, :, None, None].exp()
        recalled = torch.einsum("bhkv,bhk->bhv", state, k[:, t]) if correct else 0
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], beta[:, t, :, None] * (v[:, t] - recalled))
        if carry is not None:
            state = state.to(carry).to(v.dtype)
        outs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) * q.shape[-1] ** -0.5)
    return torch.stack(outs, 1), state


def update_by_tokens(x, norm=True, decay=True, index=None, **options):
    """gated_delta_rule_update by `token_loop`, in the dtype of v; keyword arguments make it wrong."""
    rows = (x["initial_state_indices"] if index is None else index).long()
    group = x["v"].shape[2] // x["q"].shape[2]
    q, k = ((F.normalize(x[n], dim=-1) if norm else x[n]).repeat_interleave(group, 2) for n in ("q", "k"))
    g = -x["A_log"].exp() * F.softplus(x["a"] + x["dt_bias"]) * decay
    start = x["initial_state"][rows.clamp(min=0)] * (rows >= 0)[:, None, None, None]
    out, final = token_loop(q, k, x["v"], x["b"].sigmoid(), g, start, **options)
    pool = x["initial_state"].clone()
    pool[rows[rows >= 0]] = final[rows >= 0]
    return {"out": out, "initial_state": pool}


@pytest.mark.parametrize("batch, tokens, padding", [(1, 1, 0), (1, 64, 0), (2, 67, 0), (2, 130, 1), (4, 3, 2)])
def test_chunked_update_is_the_token_loop(batch, tokens, padding):
    _, inputs, expected, _ = case(UPDATE, "19", batch_size=batch, token_count=tokens, padding=padding, state_count=5)
    for name, other in update_by_tokens(wide(inputs)).items():
        # F.normalize has no eps of 1e-6 inside the root.
        torch.testing.assert_close(expected[name], other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["steep_gates", "remembered", "padding", "whole_pool"])
def test_chunked_update_is_the_token_loop_in_corner_cases(name):
    shape = UPDATE.shape("19")
    inputs = UPDATE.corner_cases(shape, 1, "cpu")[name]()
    expected = oracle(UPDATE, shape, inputs)
    for key, other in update_by_tokens(wide(inputs)).items():
        torch.testing.assert_close(expected[key], other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 200])
def test_chunked_operators_in_a_row_are_the_token_loop(tokens):
    """corrected, chunk_gated_delta_rule_state and chunk_delta_rule_output together are the rule itself."""
    torch.manual_seed(tokens)
    q, k = (directions(2, tokens, 2, 32).double() for _ in range(2))
    v, beta = torch.randn(2, tokens, 4, 16).double(), torch.rand(2, tokens, 4).double()
    steps = log_decays(2, tokens, 4).double()
    g = within_chunks(steps, 64)
    w, u = corrected(k, v, beta.float(), g.float(), 64)  # float32 inside: input functions need no more
    pool, rows = torch.randn(5, 4, 32, 16).double(), torch.tensor([3, 1], dtype=torch.int32)
    state = STATE.reference(STATE.shape("0"))(k, w, u, g, pool, rows)
    out = OUTPUT.reference(OUTPUT.shape("0"))(q, k, state["v_new"], state["h"], g)
    many = (x.repeat_interleave(2, 2) for x in (q, k))
    other, final = token_loop(*many, v, beta, steps, pool[rows.long()])
    torch.testing.assert_close(out, other, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state["initial_state"][rows.long()], final, rtol=1e-4, atol=1e-4)
    assert torch.equal(state["initial_state"][[0, 2, 4]], pool[[0, 2, 4]])


def test_state_and_output_by_the_definition():
    """Token by token from the formulas of the two docstrings, in float64."""
    _, x, expected, _ = case(STATE, "25", batch_size=2, token_count=70)
    x = wide(x)
    k = x["k"].repeat_interleave(2, 2)
    for n in range(2):
        state = x["initial_state"][x["initial_state_indices"][n].long()]
        for c, (first, end) in enumerate(((0, 64), (64, 70))):
            torch.testing.assert_close(expected["h"][n, c], state)
            last, update = x["g"][n, end - 1], torch.zeros_like(state)
            for t in range(first, end):
                v = x["u"][n, t] - torch.einsum("hk,hkv->hv", x["w"][n, t], state)
                torch.testing.assert_close(expected["v_new"][n, t], v)
                weight = (last - x["g"][n, t]).exp()[:, None, None]
                update = update + weight * torch.einsum("hk,hv->hkv", k[n, t], v)
            state = last.exp()[:, None, None] * state + update
        row = x["initial_state_indices"][n].long()
        torch.testing.assert_close(expected["initial_state"][row], state)

    _, x, expected, _ = case(OUTPUT, "16", batch_size=1, token_count=70)
    x = {name: t[0] for name, t in wide(x).items()}
    q, k = (x[name].repeat_interleave(2, 1) for name in ("q", "k"))
    for i in (0, 1, 40, 63, 64, 69):
        total = x["g"][i].exp()[:, None] * torch.einsum("hk,hkv->hv", q[i], x["h"][i // 64])
        for j in range(i // 64 * 64, i + 1):
            score = (x["g"][i] - x["g"][j]).exp() * (q[i] * k[j]).sum(-1)
            total = total + score[:, None] * x["v"][j]
        torch.testing.assert_close(expected["out"][0, i], total * 128**-0.5)


def update_wrong(inputs, base):
    x = {name: t.float() if t.is_floating_point() else t for name, t in inputs.items()}
    yield "out all zero", {**base, "out": torch.zeros_like(base["out"])}  # passed the published inputs and tolerance
    yield "state never written", {**base, "initial_state": inputs["initial_state"]}
    rows = x["initial_state_indices"]
    for what, options in {
        "row 0 whatever the index": {"index": torch.where(rows >= 0, torch.arange(len(rows)), rows)},
        "q and k not normalised": {"norm": False},
        "nothing forgotten": {"decay": False},
        "nothing corrected": {"correct": False},
        "state kept in bf16": {"carry": torch.bfloat16},
    }.items():
        outputs = update_by_tokens(x, **options)
        yield what, {"out": outputs["out"].bfloat16(), "initial_state": outputs["initial_state"]}


def state_wrong(inputs, base):
    model = STATE.reference(STATE.shape("0"))
    yield "pool never written", {**base, "initial_state": inputs["initial_state"]}
    yield "states one chunk late", {**base, "h": base["h"].roll(1, 1)}
    yield "nothing corrected", {**base, "v_new": inputs["u"]}
    rows = torch.arange(len(inputs["initial_state_indices"]), dtype=torch.int32)
    for name, value in {"initial_state_indices": rows, "g": 0 * inputs["g"], "w": 0 * inputs["w"]}.items():
        yield f"{name} unread", model(**{**inputs, name: value})
    swapped = inputs["k"].flip(2)
    yield "key heads swapped", model(**{**inputs, "k": swapped})


def output_wrong(inputs, base):
    model = OUTPUT.reference(OUTPUT.shape("0"))
    for name in ("h", "v", "g"):  # without h is without q @ h, which passed the published inputs and tolerance
        yield f"{name} unread", {"out": model(**{**inputs, name: 0 * inputs[name]})}
    diagonal = (inputs["q"] * inputs["k"]).sum(-1, keepdim=True).repeat_interleave(2, 2) * inputs["v"] * 128**-0.5
    yield "mask off by one", {"out": base["out"] - diagonal}
    yield "no scale", {"out": base["out"] * 128**0.5}
    yield "gate of the wrong sign", {"out": model(**{**inputs, "g": -0.1 * inputs["g"]})}
    yield "last chunk's state", {"out": model(**{**inputs, "h": inputs["h"].roll(1, 1)})}


WRONG = {UPDATE.operator: update_wrong, STATE.operator: state_wrong, OUTPUT.operator: output_wrong}


@pytest.mark.parametrize("problem, shape_id", SHAPES, ids=lambda value: getattr(value, "operator", value))
def test_wrong_answers_fail(problem, shape_id):
    shape, inputs, expected, base = case(problem, shape_id)
    for what, outputs in WRONG[problem.operator](inputs, base):
        assert not compare(problem, shape, inputs, expected, base, outputs).passed, what


def test_a_float32_token_loop_passes():
    for tokens in (1, 67):
        shape, inputs, expected, base = case(UPDATE, "19", batch_size=2, token_count=tokens)
        x = {name: t.float() if t.is_floating_point() else t for name, t in inputs.items()}
        outputs = update_by_tokens(x)
        outputs["out"] = outputs["out"].bfloat16()
        result = compare(UPDATE, shape, inputs, expected, base, outputs)
        assert result.passed and result.worst < 0.7


def test_a_state_rounded_to_eleven_bits_passes_and_one_carried_in_half_precision_does_not():
    shape = UPDATE.shape("19")
    inputs = UPDATE.corner_cases(shape, 1, "cpu")["remembered"]()
    expected, base = oracle(UPDATE, shape, inputs), declared(UPDATE, shape, inputs)
    x = {name: t.float() if t.is_floating_point() else t for name, t in inputs.items()}
    for carry in (torch.bfloat16, torch.float16):
        outputs = update_by_tokens(x, carry=carry)
        outputs["out"] = outputs["out"].bfloat16()
        assert not compare(UPDATE, shape, inputs, expected, base, outputs).passed
    shape, inputs, expected, base = case(UPDATE, "19", batch_size=1, padding=0, token_count=130)
    # Rounded where it enters and where it leaves, as an operand of tf32 products is.
    rounded = {**inputs, "initial_state": _eleven_bits(inputs["initial_state"])}
    outputs = declared(UPDATE, shape, rounded)
    untouched = inputs["initial_state"].clone()
    rows = inputs["initial_state_indices"].long()
    untouched[rows] = _eleven_bits(outputs["initial_state"])[rows]
    assert compare(UPDATE, shape, inputs, expected, base, {**outputs, "initial_state": untouched}).passed


@pytest.mark.parametrize("shape_id", ["8", "19"])
def test_float16_operands_are_right_and_bf16_ones_are_not(shape_id):
    """16-bit products are the fastest that a right kernel can use, whence the charge at their rate."""
    shape = UPDATE.shape(shape_id)
    models = load_module(UPDATE.folder / "mutants.py")

    class Bf16Operands(models._SmallChunks):
        def operand(self, x):
            return x.bfloat16().float()

    rejected = []
    for name, make in UPDATE.corner_cases(shape, 1, "cpu").items():
        inputs = make()
        expected, base = oracle(UPDATE, shape, inputs), declared(UPDATE, shape, inputs)
        half, bf16 = (kind(**shape.init_kwargs)(**inputs) for kind in (models._HalfOperands, Bf16Operands))
        assert compare(UPDATE, shape, inputs, expected, base, half).passed, name
        rejected += [name] * (not compare(UPDATE, shape, inputs, expected, base, bf16).passed)
    assert {"ragged_tail", "padding", "whole_pool", "steep_gates"} <= set(rejected)


def _eleven_bits(x):
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp((mantissa * 2**11).round() / 2**11, exponent)


def test_pool_rows_are_distinct_scattered_and_not_the_first():
    for shape_id, live, pool in (("17", 29, 96), ("18", 256, 474), ("0", 1, 2)):
        shape = UPDATE.shape(shape_id)
        small = {**shape.input_kwargs, "num_q_heads": 1, "num_v_heads": 1, "key_dim": 2, "value_dim": 2}
        inputs = UPDATE.make_inputs(dataclasses.replace(shape, input_kwargs=small), 1, "cpu")
        rows = inputs["initial_state_indices"].tolist()
        named = [row for row in rows if row >= 0]
        assert len(named) == len(set(named)) == live and min(named) > 0 and max(named) < pool
        assert len(named) == 1 or named != sorted(named)


def test_gates_are_cumulative_inside_a_chunk():
    inputs = OUTPUT.make_inputs(OUTPUT.shape("16"), 1, "cpu")
    g = inputs["g"][:, :192].unflatten(1, (-1, 64))
    assert (g < 0).all() and (g.diff(dim=2) <= 0).all() and g[:, :, -1].min() < -8 and g[:, :, -1].max() > -2


class TestCeilings:
    """A ceiling is a lower bound: right kernels that do less than the published figure do no less than ours."""

    def test_an_output_kernel_that_skips_the_upper_triangle(self):
        shape, inputs, expected, base = case(OUTPUT, "16", token_count=192)
        with FlopCounterMode(display=False) as counter:
            out = output_by_tiles(**inputs)
        assert compare(OUTPUT, shape, inputs, expected, base, {"out": out}).passed
        work, (_, published) = OUTPUT.work(shape), published_flops(OUTPUT, shape)
        assert work.flops["matrix"]["bf16"] <= counter.get_total_flops() < published

    def test_an_update_kernel_in_chunks_of_four(self):
        shape, inputs, expected, base = case(UPDATE, "19", padding=0, batch_size=2, token_count=64)
        model = load_module(UPDATE.folder / "mutants.py")._SmallChunks(**shape.init_kwargs)
        model.CHUNK = 4
        with FlopCounterMode(display=False) as counter:
            outputs = model(**inputs)
        assert compare(UPDATE, shape, inputs, expected, base, outputs).passed
        decays = inputs["initial_state"][:2].numel() * 64 // 4
        done, (_, published) = counter.get_total_flops() + decays, published_flops(UPDATE, shape)
        assert UPDATE.work(shape).flops["matrix"]["bf16"] <= done < published

    def test_one_token_updated_is_seven_operations_an_element_of_the_state(self):
        shape = UPDATE.shape("0")
        kwargs = shape.input_kwargs
        state = kwargs["num_v_heads"] * kwargs["key_dim"] * kwargs["value_dim"]
        assert kwargs["token_count"] == kwargs["batch_size"] == 1
        assert UPDATE.work(shape).flops["matrix"]["bf16"] == 7 * state


def published_flops(problem, shape):
    """(operator, FLOPs that the release would count for these arguments)."""
    counted = load_module(problem.folder / "work.py").published(shape.init_kwargs, shape.input_kwargs)
    return problem.operator, counted[0]


def output_by_tiles(q, k, v, h, g, chunk=64, tile=16):
    """chunk_delta_rule_output with the scores of tiles on and under the diagonal alone."""
    group = v.shape[2] // q.shape[2]
    q, k = (x.float().repeat_interleave(group, 2).transpose(1, 2) for x in (q, k))
    values, gates = v.float().transpose(1, 2), g.transpose(1, 2)[..., None]
    out = torch.zeros_like(values)
    for top in range(0, v.shape[1], tile):
        rows, c = slice(top, top + tile), top // chunk
        out[:, :, rows] = gates[:, :, rows].exp() * (q[:, :, rows] @ h[:, c].float())
        for left in range(c * chunk, top + tile, tile):
            cols = slice(left, left + tile)
            since = (gates[:, :, rows] - gates[:, :, cols].mT).clamp(max=0).exp()
            scores = q[:, :, rows] @ k[:, :, cols].mT * since
            out[:, :, rows] += (scores.tril() if left == top else scores) @ values[:, :, cols]
    return (out * q.shape[-1] ** -0.5).transpose(1, 2).to(v.dtype).contiguous()
