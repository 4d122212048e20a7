"""``muster serve``: the workbench's REST interface over any Muster platform.

Only the ``muster serve`` command imports this package: it needs the packages of the extra ``serve``.
"""
