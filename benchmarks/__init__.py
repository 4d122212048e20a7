"""Benchmarks behind docs/figures.md: ``python -m benchmarks [NAME ...] [--quick]``, or each file by itself.

Every benchmark measures Muster and a named floor (the least work that could serve the same purpose) by turns in one
run, so that other load on the machine affects both alike. Medians and quartiles are shown; a ratio is the median of the
ratios within each turn. No benchmark fails for being slow: a target that is missed is reported as missed.
"""
