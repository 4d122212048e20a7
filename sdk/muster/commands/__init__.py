"""The parts of the ``muster`` command. What a command needs is imported when it runs, so that ``--help`` is instant."""
