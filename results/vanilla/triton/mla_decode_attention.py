"""Decode attention over a latent cache: programs take equal runs of tokens, however long the sequences are, and some of
the heads; a tile of latents is read once, as keys and as values. A second kernel joins the runs of a sequence."""

import torch
import triton
import triton.language as tl

LOG2E = 1.4426950408889634


@triton.jit(do_not_specialize=["sequences", "run"])
def mla_decode_kernel(q_ptr, cache_ptr, lens_ptr, parts_ptr, sums_ptr, scale, sequences, run, HEADS: tl.constexpr,
                      RANK: tl.constexpr, ROPE: tl.constexpr, ROPE_PAD: tl.constexpr, ROWS: tl.constexpr,
                      TILE: tl.constexpr, SEQUENCES_PAD: tl.constexpr):
    pid = tl.program_id(0)
    index = tl.arange(0, SEQUENCES_PAD)
    lengths = tl.load(lens_ptr + index, mask=index < sequences, other=0)
    ends = tl.cumsum((lengths + run - 1) // run, 0)
    seq = tl.sum((ends <= pid).to(tl.int32), axis=0)
    if seq >= sequences:
        return
    length = tl.sum(tl.where(index == seq, lengths, 0), axis=0)
    first = tl.sum(tl.where(index < seq, lengths, 0).to(tl.int64), axis=0)
    low = (pid - tl.sum(tl.where(index < seq, (lengths + run - 1) // run, 0), axis=0)) * run
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
    for start in range(low, high, TILE):
        token = start + tl.arange(0, TILE)
        held = (token < high)[:, None]
        row = cache_ptr + (first + token)[:, None] * SIZE
        c = tl.load(row + latent, mask=held, other=0.0)
        c_rope = tl.load(row + RANK + rope, mask=held & (rope < ROPE), other=0.0)
        score = tl.dot(q, tl.trans(c), out_dtype=tl.float32)
        score = tl.dot(q_rope, tl.trans(c_rope), acc=score, out_dtype=tl.float32) * scale
        score = tl.where((token < high)[None, :], score, -float("inf"))
        peak = tl.maximum(top, tl.max(score, axis=1))
        p = tl.exp2(score - peak[:, None])
        decay = tl.exp2(top - peak)
        total = total * decay + tl.sum(p, axis=1)
        acc = tl.dot(p.to(c.dtype), c, acc=acc * decay[:, None], out_dtype=tl.float32)
        top = peak
    place = pid.to(tl.int64) * HEADS + head
    tl.store(sums_ptr + place, top + tl.log2(total), mask=head < HEADS)
    tl.store(parts_ptr + place[:, None] * RANK + latent, acc / total[:, None], mask=live)


@triton.jit(do_not_specialize=["sequences", "run"])
def join_kernel(parts_ptr, sums_ptr, lens_ptr, out_ptr, sequences, run, HEADS: tl.constexpr, RANK: tl.constexpr,
                COLS: tl.constexpr, TILE: tl.constexpr, SEQUENCES_PAD: tl.constexpr):
    seq, head = tl.program_id(0), tl.program_id(1)
    index = tl.arange(0, SEQUENCES_PAD)
    lengths = tl.load(lens_ptr + index, mask=index < sequences, other=0)
    runs = (lengths + run - 1) // run
    low = tl.sum(tl.where(index < seq, runs, 0), axis=0)
    high = low + tl.sum(tl.where(index == seq, runs, 0), axis=0)
    latent = tl.program_id(2) * COLS + tl.arange(0, COLS)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([COLS], tl.float32)
    for start in range(low, high, TILE):
        part = start + tl.arange(0, TILE)
        place = part.to(tl.int64) * HEADS + head
        mass = tl.load(sums_ptr + place, mask=part < high, other=-float("inf"))
        peak = tl.maximum(top, tl.max(mass, axis=0))
        weight = tl.exp2(mass - peak)
        decay = tl.exp2(top - peak)
        total = total * decay + tl.sum(weight, axis=0)
        values = tl.load(parts_ptr + place[:, None] * RANK + latent[None, :], mask=(part < high)[:, None], other=0.0)
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
        # A run is whole tiles and about two waves of programs; the cache's rows bound the number of tokens.
        rows, tile, warps = (64, 32, 8) if heads > 32 else (16, 32, 4)
        blocks = triton.cdiv(heads, rows)
        run = min(2048, triton.cdiv(triton.cdiv(tokens * blocks, 264), 64) * 64)
        programs = tokens // run + sequences
        parts = torch.empty((programs, heads, self.rank), dtype=torch.float32, device=device)
        sums = torch.empty((programs, heads), dtype=torch.float32, device=device)
        pad = triton.next_power_of_2(sequences)
        mla_decode_kernel[(programs, blocks)](
            q, kv_cache, seq_lens, parts, sums, size**-0.5 * LOG2E, sequences, run, HEADS=heads, RANK=self.rank,
            ROPE=self.rope, ROPE_PAD=max(16, triton.next_power_of_2(self.rope)), ROWS=rows, TILE=tile,
            SEQUENCES_PAD=pad, num_warps=warps, num_stages=2,
        )  # fmt: skip
        join_kernel[(sequences, heads, self.rank // 128)](
            parts, sums, seq_lens, out, sequences, run, HEADS=heads, RANK=self.rank, COLS=128, TILE=32,
            SEQUENCES_PAD=pad, num_warps=4,
        )  # fmt: skip
        return out
