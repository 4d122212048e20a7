"""The offset between two clocks is that of the answer that came soonest, and no other answer counts."""

from __future__ import annotations

from muster.agent import wire
from muster.pools.clocks import GOOD_ENOUGH, MOST_QUESTIONS, ClockMeasurement


class Session:
    """A session whose questions take as long as is said, to a worker whose clock is 100 s ahead."""

    def __init__(self) -> None:
        self.now = 10.0
        self.measured = ClockMeasurement(lambda: self.now)

    def ask(self, there: float, back: float) -> wire.Clock:
        question = self.measured.question()
        answer = wire.Clock(question.number, self.now + there + 100.0, 0.0)
        self.now += there + back
        self.measured.answered(answer, self.now)
        return answer


def test_of_several_answers_the_best_is_kept() -> None:
    session = Session()
    session.ask(0.1, 0.1)
    session.ask(0.004, 0.006)
    best = session.measured.offset
    assert best is not None
    assert abs(best.offset - 100.0) <= best.error < 0.006
    session.ask(0.3, 0.0)
    assert session.measured.offset == best


def test_it_is_asked_again_until_an_answer_is_good_enough_but_not_for_ever() -> None:
    session = Session()
    for _ in range(MOST_QUESTIONS):
        assert session.measured.wants_more
        session.ask(1.0, 1.0)
    assert not session.measured.wants_more
    soon = Session()
    soon.ask(0.05, 0.05)
    assert soon.measured.wants_more
    soon.ask(GOOD_ENOUGH / 2, GOOD_ENOUGH / 2)
    assert not soon.measured.wants_more


def test_an_answer_to_an_earlier_question_counts_for_nothing() -> None:
    session = Session()
    late = session.ask(0.1, 0.1)
    before = session.measured.offset
    session.measured.question()
    session.now += 0.001
    session.measured.answered(late, session.now)
    session.measured.answered(wire.Clock(late.number + 1, 0.0, 0.0), session.now - 1)
    assert session.measured.offset == before is not None
