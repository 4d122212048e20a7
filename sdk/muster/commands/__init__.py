"""The parts of the ``muster`` command. Most imports wait until a command runs, so that ``--help`` is instant."""
