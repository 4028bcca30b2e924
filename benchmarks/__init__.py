"""Benchmarks: ratios of times and memory, measured in one run."""
