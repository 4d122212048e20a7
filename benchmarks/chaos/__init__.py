"""Test by random faults in random ranks at random times whether Muster names what failed first: ``make chaos``.

Ranks talk to one another over TCP, so that a fault in one breaks its neighbours' connections as well. Each fault has a
verdict that Muster must reach. Counted is how often it does; measured, how long it takes until then, and until no
process or file of the run is left.
"""
