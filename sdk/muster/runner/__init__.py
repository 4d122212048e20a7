"""The runner: it starts the user's script in the user's interpreter, inside workers.

It is shipped with ``muster.training``, through which it reports the stages of the process, and imports nothing else of
Muster. Standard library only and Python 3.6 syntax. What any script may need is imported before the script is run: it
may have used up its descriptors afterwards, or have put other modules of the same names in front.
"""
