from dataclasses import replace

from tests.endurance.judge import Arrived, Judge, Verdict
from tests.endurance.traffic import SEQUENCE_HEADER, Identity, decode

_RUN = b"run-0001"


def _arrived(offset: int, sequence: int, *, last: bool = False, run: bytes = _RUN, producer: int = 0) -> Arrived:
    identity = Identity(run, producer, 0, sequence, 1000 + sequence, last)
    headers = [(SEQUENCE_HEADER, b"%d" % sequence)]
    return Arrived(0, offset, identity.key, identity.encode(100), headers, identity.time_ms)


def _judge(*sequences: int, sent: int) -> Judge:
    judge = Judge(_RUN, {(0, 0): sent})
    for offset, sequence in enumerate(sequences):
        judge.add(_arrived(offset, sequence, last=sequence == sent - 1))
    return judge


def test_identity_survives_its_value_and_a_flipped_bit_does_not() -> None:
    identity = Identity(_RUN, 1, 2, 3, 4, is_last=True)
    value = bytearray(identity.encode(200))
    assert len(value) == 200
    assert decode(bytes(value)) == identity
    value[100] ^= 1
    assert decode(bytes(value)) is None
    assert decode(b"") is None


def test_records_in_order_have_no_errors() -> None:
    judge = _judge(0, 1, 2, sent=3)
    assert judge.is_complete
    verdict = judge.verdict([])
    assert verdict == Verdict(records=3)


def test_missing_records_are_reported_as_ranges_including_the_end_of_the_partition() -> None:
    judge = _judge(0, 3, 4, 6, sent=9)
    assert not judge.is_complete
    assert judge.verdict([]).lost == [
        "producer 0, partition 0: sequences 1 to 2",
        "producer 0, partition 0: sequences 5 to 5",
        "producer 0, partition 0: sequences 7 to 8",
    ]


def test_a_partition_without_records_is_lost_completely() -> None:
    assert Judge(_RUN, {(0, 0): 5}).verdict([]).lost == ["producer 0, partition 0: sequences 0 to 4"]


def test_duplicates_are_attributed_to_the_preceding_kill() -> None:
    judge = _judge(0, 1, 1, 2, 1, 2, 3, 2, 3, 4, sent=5)
    verdict = judge.verdict([{0: 4}, {0: 7}, {0: 10}])
    assert dict(verdict.duplicates) == {0: 1, 1: 2, 2: 2}
    assert not verdict.lost
    assert not verdict.disordered


def test_a_late_first_arrival_is_out_of_order_and_not_lost() -> None:
    judge = _judge(0, 2, 1, 3, sent=4)
    verdict = judge.verdict([])
    assert judge.is_complete
    assert len(verdict.disordered) == 1
    assert not verdict.lost
    assert not verdict.duplicates


def test_each_part_of_a_record_is_compared_with_its_identity() -> None:
    good = _arrived(0, 0)
    for wrong, message in (
        (replace(good, key=None), "its key is None"),
        (replace(good, value=b"short"), "its value is damaged"),
        (replace(good, value=None), "its value is damaged"),
        (replace(good, headers=[]), "its headers is []"),
        (replace(good, timestamp_ms=1), "its timestamp is 1"),
        (replace(good, partition=1), "its partition is 1"),
        (_arrived(0, 0, run=b"run-0002"), "its run is b'run-0002'"),
        (_arrived(0, 0, producer=7), "there is no producer 7"),
    ):
        judge = Judge(_RUN, {(0, 0): 1})
        judge.add(wrong)
        (sentence,) = judge.verdict([]).damaged
        assert message in sentence
