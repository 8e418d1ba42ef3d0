"""How long a broker is not asked that answers at once with nothing."""

from __future__ import annotations

from mm2.kafka.backoff import HastyAnswers


def test_a_broker_that_answers_at_once_with_nothing_is_asked_once_a_second() -> None:
    """It was asked 2,300 times a second. A few such answers are usual."""
    answers = HastyAnswers()
    pauses_s = [answers.pause_s(is_hasty=True) for _ in range(40)]
    assert not any(pauses_s[:7])
    assert sum(pauses_s[:17]) < 2
    assert min(pauses_s[20:]) > 0.7
    assert answers.pause_s(is_hasty=False) == 0
    assert answers.pause_s(is_hasty=True) == 0
