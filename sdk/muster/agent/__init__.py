"""The agent: runs inside each worker and dials the session.

Standard library only and Python 3.6 syntax, so that any training interpreter can host it.
"""
