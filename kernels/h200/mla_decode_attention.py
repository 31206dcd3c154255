"""Decode attention over a latent cache: programs take equal runs of tokens and some of the heads, a join adds them.

A tile of latents is read once, as keys and as values. Small batches are cut into runs of one tile, of 32 tokens or,
where they are too many at once, of 64; long contexts into whole waves of two runs an SM, two tiles ahead (of one run,
a tile of 64, where a program takes 64 heads). join_kernel is launched early (programmatic dependent launch), reads the
lengths and waits for the parts.
Bounds: small batches latency (launch, lengths, latents, join), long contexts HBM, many heads tensor cores and L2.
Sweeps on an H200: 4 x 128 tokens, 128 heads 11.6 us (S 0.03); 256 tokens 9.4 us, 10.4 us in runs of 16; 7 x 256 10.9 us
(0.04); 16 x 8192 56 us (0.56); 64 x 4096, 128 heads 372 us (0.20), 389 us with two joins a row; 32768 tokens 35.8 us
(0.22), 38 us with one.
"""

import torch
import triton
import triton.language as tl

LOG2E = 1.4426950408889634
SMS = 132
RUNS = 96  # programs in flight at once where tokens are few, with room for the join's


def config(tokens: int, sequences: int, heads: int) -> tuple[int, int, int, int, int]:
    """Tokens of a run, heads and tokens of a tile, stages and warps. `tokens` bounds those of all sequences."""
    rows, warps, resident = (64, 8, 1) if heads > 32 and tokens > 4096 else (16, 4, 2)
    blocks, waves = triton.cdiv(heads, rows), 1
    if tokens * blocks <= SMS * 64:
        run = 32 if (tokens // 32 + sequences) * blocks <= RUNS else 64
        return run, rows, run, 1, 8
    tile, stages = (64, 2) if rows == 64 else (32, 3)
    while True:
        # Each sequence leaves half a run empty on average.
        slots = waves * resident * SMS - sequences * blocks // 2
        run = triton.cdiv(tokens * blocks, max(1, slots) * tile) * tile
        if run <= 2048 and slots > 0:
            return run, rows, tile, stages, warps
        waves += 1


def join_config(tokens: int, rows: int, rank: int) -> tuple[int, int]:
    """Columns and warps of a program that joins one of `rows`: the whole row where there are enough of them."""
    if rows > SMS and rank == triton.next_power_of_2(rank):
        return rank, 4
    if tokens <= 4096:
        return 128, 1
    return (256 if rank % 256 == 0 else 128), 4


@triton.jit
def _step(acc, top, total, q, q_rope, c, c_rope, held, scale):
    """A tile of latents, as keys and as values."""
    score = tl.dot(q, tl.trans(c), out_dtype=tl.float32)
    score = tl.dot(q_rope, tl.trans(c_rope), acc=score, out_dtype=tl.float32)
    score = tl.where(held[None, :], score, -float("inf"))
    peak = tl.maximum(top, tl.max(score, axis=1) * scale)
    p = tl.exp2(score * scale - peak[:, None])
    decay = tl.exp2(top - peak)
    total = total * decay + tl.sum(p, axis=1)
    acc = tl.dot(p.to(c.dtype), c, acc=acc * decay[:, None], out_dtype=tl.float32)
    return acc, peak, total


@triton.jit(do_not_specialize=["sequences", "run"])
def mla_decode_kernel(q_ptr, cache_ptr, lens_ptr, parts_ptr, sums_ptr, scale, sequences, run, HEADS: tl.constexpr,
                      RANK: tl.constexpr, ROPE: tl.constexpr, ROPE_PAD: tl.constexpr, ROWS: tl.constexpr,
                      TILE: tl.constexpr, SEQUENCES_PAD: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr):
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    pid = tl.program_id(0)
    index = tl.arange(0, SEQUENCES_PAD)
    lengths = tl.load(lens_ptr + index, mask=index < sequences, other=0)
    runs = (lengths + run - 1) // run
    ends = tl.cumsum(runs, 0)
    seq = tl.sum((ends <= pid).to(tl.int32), axis=0)
    if seq >= sequences:
        return
    length = tl.sum(tl.where(index == seq, lengths, 0), axis=0)
    first = tl.sum(tl.where(index < seq, lengths, 0).to(tl.int64), axis=0)
    low = (pid - tl.sum(tl.where(index < seq, runs, 0), axis=0)) * run
    high = tl.minimum(low + run, length)

    SIZE: tl.constexpr = RANK + ROPE
    head = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    live = (head < HEADS)[:, None]
    latent = tl.arange(0, RANK)[None, :]
    rope = tl.arange(0, ROPE_PAD)[None, :]
    q_row = q_ptr + (seq.to(tl.int64) * HEADS + head[:, None]) * SIZE
    q = tl.load(q_row + latent, mask=live, other=0.0)
    q_rope = tl.load(q_row + RANK + rope, mask=live & (rope < ROPE), other=0.0)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, RANK], tl.float32)
    # The run's last token stands for those past its end: what follows may be NaN, and no load needs a mask.
    rows = cache_ptr + first * SIZE
    if STAGES == 1:  # one tile: without a loop its loads do not stand behind the queries'
        token = low + tl.arange(0, TILE)
        row = rows + tl.minimum(token, high - 1)[:, None].to(tl.int64) * SIZE
        c = tl.load(row + latent)
        c_rope = tl.load(row + RANK + rope, mask=rope < ROPE, other=0.0)
        acc, top, total = _step(acc, top, total, q, q_rope, c, c_rope, token < high, scale)
    else:
        for start in tl.range(low, high, TILE, num_stages=STAGES):
            token = start + tl.arange(0, TILE)
            row = rows + tl.minimum(token, high - 1)[:, None].to(tl.int64) * SIZE
            c = tl.load(row + latent)
            c_rope = tl.load(row + RANK + rope, mask=rope < ROPE, other=0.0)
            acc, top, total = _step(acc, top, total, q, q_rope, c, c_rope, token < high, scale)
    place = pid.to(tl.int64) * HEADS + head
    tl.store(sums_ptr + place, top + tl.log2(total), mask=head < HEADS)
    tl.store(parts_ptr + place[:, None] * RANK + latent, acc / total[:, None], mask=live)


@triton.jit(do_not_specialize=["sequences", "run"])
def join_kernel(parts_ptr, sums_ptr, lens_ptr, out_ptr, sequences, run, HEADS: tl.constexpr, RANK: tl.constexpr,
                COLS: tl.constexpr, TILE: tl.constexpr, SEQUENCES_PAD: tl.constexpr, EARLY: tl.constexpr):
    seq, head = tl.program_id(0), tl.program_id(1)
    index = tl.arange(0, SEQUENCES_PAD)
    lengths = tl.load(lens_ptr + index, mask=index < sequences, other=0)
    runs = (lengths + run - 1) // run
    low = tl.sum(tl.where(index < seq, runs, 0), axis=0)
    high = low + tl.sum(tl.where(index == seq, runs, 0), axis=0)
    # The lengths are inputs: only what the first kernel writes lies behind the wait.
    if EARLY:
        tl.extra.cuda.gdc_wait()
    latent = tl.program_id(2) * COLS + tl.arange(0, COLS)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([COLS], tl.float32)
    for start in range(low, high, TILE):
        part = start + tl.arange(0, TILE)
        place = part.to(tl.int64) * HEADS + head
        mass = tl.load(sums_ptr + place, mask=part < high, other=-float("inf"))
        values = tl.load(parts_ptr + place[:, None] * RANK + latent[None, :], mask=(part < high)[:, None], other=0.0)
        peak = tl.maximum(top, tl.max(mass, axis=0))
        weight = tl.exp2(mass - peak)
        decay = tl.exp2(top - peak)
        total = total * decay + tl.sum(weight, axis=0)
        acc = acc * decay + tl.sum(values * weight[:, None], axis=0)
        top = peak
    out = out_ptr + (seq.to(tl.int64) * HEADS + head) * RANK + latent
    tl.store(out, (acc / total).to(out_ptr.dtype.element_ty))


class Model(torch.nn.Module):
    def __init__(self, nhead: int, kv_lora_rank: int, qk_rope_head_dim: int):
        super().__init__()
        self.rank, self.rope = kv_lora_rank, qk_rope_head_dim

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, seq_lens: torch.Tensor) -> torch.Tensor:
        sequences, heads, size = q.shape
        tokens, device = kv_cache.shape[0], q.device
        out = torch.empty((sequences, heads, self.rank), dtype=q.dtype, device=device)
        run, rows, tile, stages, warps = config(tokens, sequences, heads)
        programs = tokens // run + sequences
        parts = torch.empty((programs, heads, self.rank), dtype=torch.float32, device=device)
        sums = torch.empty((programs, heads), dtype=torch.float32, device=device)
        pad = triton.next_power_of_2(sequences)
        early = q.is_cuda
        mla_decode_kernel[(programs, triton.cdiv(heads, rows))](
            q, kv_cache, seq_lens, parts, sums, size**-0.5 * LOG2E, sequences, run, HEADS=heads, RANK=self.rank,
            ROPE=self.rope, ROPE_PAD=max(16, triton.next_power_of_2(self.rope)), ROWS=rows, TILE=tile,
            SEQUENCES_PAD=pad, STAGES=stages, EARLY=early, num_warps=warps,
        )  # fmt: skip
        cols, join_warps = join_config(tokens, sequences * heads, self.rank)
        join_kernel[(sequences, heads, self.rank // cols)](
            parts, sums, seq_lens, out, sequences, run, HEADS=heads, RANK=self.rank, COLS=cols,
            TILE=8 if tokens <= 4096 else 32, SEQUENCES_PAD=pad, EARLY=early, num_warps=join_warps, launch_pdl=early,
        )  # fmt: skip
        return out
