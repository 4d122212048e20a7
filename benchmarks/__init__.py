"""Benchmarks behind docs/figures.md: ``python -m benchmarks [NAME ...] [--quick]``, or each file by itself.

Each benchmark measures Muster and a baseline (``floor`` in results): the least work that serves the same purpose, such
as a bare horovodrun. The two take turns within one run, so that other load on the machine affects both alike. Tables
show medians and quartiles; a ratio is the median of the ratios of all turns. No benchmark fails for being slow: a
target that is missed is reported as missed.
"""
