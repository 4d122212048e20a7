"""Put random faults into random ranks at random times, and see whether Muster names what failed first: ``make chaos``.

Ranks talk to one another over TCP, so that a fault in one also breaks its neighbours' connections. Each fault has a
verdict that Muster must reach. Reported are how often it does, how long it takes, and how long until no process or file
of the run is left.
"""
