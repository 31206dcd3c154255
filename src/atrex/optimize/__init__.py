"""AKA: the kernel agent. A campaign makes one kernel faster, by steps whose gates are mechanical."""
