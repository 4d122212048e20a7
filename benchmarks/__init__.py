"""Sources of the figures of docs/figures.md: ``python -m benchmarks [NAME ...] [--quick]``, or each file by itself.

Every benchmark measures Muster and a named floor (the least that anybody could do for the same end) by turns in one
run, so that whatever else the machine does meets both alike. What is shown is medians and quartiles, and of ratios the
median of those within each turn. Nothing here fails for being slow: a target that is missed is said to be missed.
"""
