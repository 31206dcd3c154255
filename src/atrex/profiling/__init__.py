"""What ran on the device and under which clocks: activity collectors (CUPTI, rocprofiler-sdk) and NVML."""
