"""What the runner tells of an exception."""

from __future__ import annotations

from muster.agent.runner import LONGEST_MESSAGE, _message_of
from muster.failure.causes import Bearing, Failure, FailureKind

GRAPH = """Graph execution error:

Detected at node gradient_0 defined at (most recent call last):
{}
Horovod has been shut down. This was caused by an exception on one of the ranks.
\t [[{{{{node gradient_0}}}}]] [Op:__inference_multi_step_on_iterator_452]"""
FRAMES = '  File "/home/me/a-long-name-of-a-project/train.py", line 27, in <module>\n\n' * 40


def test_what_happened_comes_first_in_an_error_of_a_graph() -> None:
    for stack in (FRAMES, "<stack traces unavailable>", FRAMES + "Node: 'gradient_0'"):
        message = _message_of(RuntimeError(GRAPH.format(stack)))
        assert message.splitlines()[0].startswith("Horovod has been shut down.")
    two = "Graph execution error:\n\n" + "Detected at node a defined at (most recent call last):\n" * 2 + FRAMES
    assert _message_of(RuntimeError(two + "Incompatible shapes: [32,10] vs. [32,9]")).startswith("Incompatible shapes")
    assert _message_of(RuntimeError("Graph execution error:")) == "Graph execution error:"
    assert _message_of(ValueError("no Graph execution error:\n\n  text")) == "no Graph execution error:\n\n  text"


def test_a_long_message_keeps_its_end_which_may_tell_of_another_rank() -> None:
    message = _message_of(RuntimeError("In the loop of train.py: " + "x" * 5000 + " Horovod has been shut down."))
    assert message.startswith("In the loop")
    assert len(message) <= LONGEST_MESSAGE
    assert Failure(FailureKind.EXCEPTION, 1.0, type="UnknownError", message=message).bearing is Bearing.COLLECTIVE
