"""Requests: the five benchmarks, the target's chat template, and the sealed split."""
