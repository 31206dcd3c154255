"""The GPU wiki: sourced cards on how to make kernels fast, and a search that finds them offline."""
