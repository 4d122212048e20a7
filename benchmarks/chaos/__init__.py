"""Random faults in random ranks at random times, and whether Muster tells who failed first: ``make chaos``.

Ranks talk to one another over TCP, so that one fault breaks the connections of its neighbours as well. Each fault has a
written verdict; how often it is given is counted, and how long it takes until then and until nothing is left.
"""
