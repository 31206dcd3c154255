"""Made-up evidence. No counter here was measured: these are textbook values of kernels with one fault each."""

from __future__ import annotations

from atrex.profiling.evidence import Ceiling, Evidence, ProfiledKernel

# A healthy streaming kernel: 1 GiB in, 1 GiB out on an H200 at 92 % of its bandwidth.
STREAMING = {
    "gpu__time_duration.sum": 486_000,
    "launch__grid_size": 131_072,
    "launch__registers_per_thread": 18,
    "launch__waves_per_multiprocessor": 124.1,
    "launch__occupancy_limit_registers": 10,
    "launch__occupancy_limit_shared_mem": 32,
    "launch__occupancy_limit_warps": 8,
    "sm__maximum_warps_per_active_cycle_pct": 100,
    "sm__warps_active.avg.pct_of_peak_sustained_active": 88,
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": 92,
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": 45,
    "l1tex__throughput.avg.pct_of_peak_sustained_elapsed": 25,
    "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed": 6,
    "smsp__issue_active.avg.pct_of_peak_sustained_active": 8,
    "smsp__thread_inst_executed_per_inst_executed.ratio": 32,
    "dram__bytes_read.sum": 2**30,
    "dram__bytes_write.sum": 2**30,
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio": 32,
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.ratio": 32,
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 2**25,
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": 2**25,
    "l1tex__t_bytes_pipe_lsu_mem_local_op_ld.sum": 0,
    "l1tex__t_bytes_pipe_lsu_mem_local_op_st.sum": 0,
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": 0,
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum": 0,
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": 0,
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum": 0,
    "lts__t_sectors_op_atom.sum": 0,
    "lts__t_sectors_op_red.sum": 0,
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": 0,
    "sm__inst_executed_pipe_tensor.sum": 0,
    "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active": 0,
    "smsp__average_warp_latency_per_inst_issued.ratio": 100,
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": 85,
    "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio": 0,
    "smsp__average_warps_issue_stalled_mio_throttle_per_issue_active.ratio": 0,
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": 0,
    "smsp__average_warps_issue_stalled_no_instruction_per_issue_active.ratio": 1,
}
UNCOALESCED = STREAMING | {
    "gpu__time_duration.sum": 2_400_000,
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio": 4,
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 2**28,
    "dram__bytes_read.sum": 8 * 2**30,
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": 83,
}
SPILLING = STREAMING | {
    "gpu__time_duration.sum": 2_000_000,
    "launch__registers_per_thread": 255,
    "sm__maximum_warps_per_active_cycle_pct": 12.5,
    "l1tex__t_bytes_pipe_lsu_mem_local_op_ld.sum": 4 * 2**30,
    "l1tex__t_bytes_pipe_lsu_mem_local_op_st.sum": 3 * 2**30,
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": 55,
    "dram__bytes_read.sum": 1.3 * 2**30,
}
BANK_CONFLICTED = STREAMING | {
    "gpu__time_duration.sum": 3_000_000,
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": 12,
    "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed": 95,
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": 3.2e8,
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": 3.1e8,
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum": 1e7,
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": 5,
    "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio": 40,
    "smsp__average_warps_issue_stalled_mio_throttle_per_issue_active.ratio": 45,
}
TINY = STREAMING | {
    "gpu__time_duration.sum": 2_200,
    "launch__grid_size": 1,
    "launch__waves_per_multiprocessor": 0.001,
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": 0.3,
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": 0.4,
    "dram__bytes_read.sum": 8192,
    "dram__bytes_write.sum": 0,
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 128,
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": 128,
}
TENSOR_CORE = STREAMING | {
    "gpu__time_duration.sum": 1_600_000,
    "launch__grid_size": 2048,
    "launch__registers_per_thread": 216,
    "launch__waves_per_multiprocessor": 15.5,
    "sm__maximum_warps_per_active_cycle_pct": 12.5,
    "sm__warps_active.avg.pct_of_peak_sustained_active": 12.4,
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": 20,
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": 48,
    "dram__bytes_read.sum": 1.2e9,
    "dram__bytes_write.sum": 1.4e8,
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": 74,
    "sm__inst_executed_pipe_tensor.sum": 4e6,
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": 20,
}
# kernel -> counters, roofline in us and what bounds it, bytes of the operands
KERNELS = {
    "streaming": (STREAMING, 447.4, "memory", 2 * 2**30),
    "uncoalesced": (UNCOALESCED, 447.4, "memory", 2 * 2**30),
    "spilling": (SPILLING, 447.4, "memory", 2 * 2**30),
    "bank_conflicted": (BANK_CONFLICTED, 447.4, "memory", 2 * 2**30),
    "tiny": (TINY, 0.0017, "memory", 8192),
    "tensor_core": (TENSOR_CORE, 1111.3, "matrix", 3 * 2**27),
}


def evidence(name: str, without: tuple[str, ...] = (), **changed: float) -> Evidence:
    """Synthetic evidence of one of KERNELS, `without` the counters that start so, with others `changed`."""
    counters, roofline, bound, q = KERNELS[name]
    kept = {key: float(value) for key, value in counters.items() if not key.startswith(without or ("\0",))}
    return Evidence(
        tool="synthetic", tool_version="0", command="none", date="2026-01-02", device="NVIDIA H200", chip="H200",
        arch="sm_90", dsl="triton", candidate="none", candidate_sha256="0" * 64, operator=name, shape="0",
        kernel=ProfiledKernel(name=f"{name}_kernel", index=0, us=counters["gpu__time_duration.sum"] / 1e3),
        counters=kept | changed, synthetic=True,
        ceiling=Ceiling(
            roofline_us=roofline, bound=bound, bytes_read=q / 2, bytes_written=q / 2, flops=0, card="chip-h200"
        ),
    )  # fmt: skip
