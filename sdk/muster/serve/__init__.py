"""``muster serve``: the workbench's REST interface over any Muster platform.

Only the ``muster serve`` command imports this package: it needs what ``pip install 'muster[serve]'`` brings.
"""
