"""Positions above the target's high watermark are detected."""

from tests.endurance.positions import Claim, Position, PositionSampler, above, parse
from tests.faults.oracle import Rows

KEY = b'["MirrorSourceConnector",{"cluster":"A","partition":3,"topic":"chaos"}]'


def rows(text: str, first: int = 0) -> Rows:
    return Rows((first + index, ord(letter)) for index, letter in enumerate(text))


def claim(position: int, high_watermark: int, *, at_s: float = 0.0, epoch: int = 1) -> Claim:
    return Claim(at_s, "chaos", 0, position, high_watermark, epoch)


LATER = claim(6, 16, at_s=10.0)


def test_a_record_of_the_offsets_topic_is_the_next_source_offset() -> None:
    assert parse(KEY, b'{"offset":99}') == Position("chaos", 3, 100)


def test_tombstones_and_other_connectors_are_no_positions() -> None:
    assert parse(KEY, None) is None
    assert parse(None, b'{"offset":1}') is None
    assert parse(b'["MirrorHeartbeatConnector",{"sourceClusterAlias":"A"}]', b'{"offset":1}') is None
    assert parse(b"{", b"{}") is None


def test_a_position_whose_records_are_below_the_high_watermark_is_valid() -> None:
    verdict = above(0, [claim(3, 13), claim(3, 16), claim(0, 0), LATER], rows("abcdef"), rows("abcdef", 10))
    assert (verdict.above, verdict.uncertain) == ([], [])


def test_a_position_that_claims_records_at_or_above_the_high_watermark_is_reported_with_their_number() -> None:
    (sentence,) = above(0, [claim(4, 12), LATER], rows("abcdef"), rows("abcdef", 10)).above
    assert "position 4, high watermark 12; the 2 records from source offset 2 on reach target offset 13" in sentence


def test_duplicates_below_the_high_watermark_do_not_replace_records_above_it() -> None:
    verdict = above(0, [claim(3, 13), LATER], rows("abcdef"), rows("aabcdef", 10))
    assert len(verdict.above) == 1


def test_equal_records_are_distinguished_by_their_order() -> None:
    assert len(above(0, [claim(2, 11), LATER], rows("aa"), rows("aa", 10)).above) == 1
    assert not above(0, [claim(2, 12), LATER], rows("aa"), rows("aa", 10)).above


def test_a_record_that_is_lost_is_left_to_the_oracle() -> None:
    assert not above(0, [claim(3, 12), LATER], rows("abc"), rows("ac", 10)).above


def test_offsets_without_a_record_claim_nothing() -> None:
    source = Rows([(0, ord("a")), (5, ord("b"))])
    assert not above(0, [claim(5, 11), LATER], source, rows("ab", 10)).above
    assert len(above(0, [claim(6, 11), LATER], source, rows("ab", 10)).above) == 1


def test_an_answer_with_an_epoch_that_no_later_answer_has_is_uncertain() -> None:
    verdict = above(0, [claim(4, 12, epoch=1), claim(6, 16, at_s=10.0, epoch=2)], rows("abcdef"), rows("abcdef", 10))
    assert (len(verdict.above), len(verdict.uncertain)) == (0, 1)
    soon = above(0, [claim(4, 12), claim(6, 16, at_s=1.0)], rows("abcdef"), rows("abcdef", 10))
    assert (len(soon.above), len(soon.uncertain)) == (0, 1)


def test_an_answer_of_a_leader_that_was_deposed_before_the_records_were_written_is_uncertain() -> None:
    """A deposed leader may answer for seconds."""
    claims = [claim(4, 12, epoch=1), claim(4, 12, at_s=10.0, epoch=1), claim(6, 16, at_s=11.0, epoch=2)]
    source, target = rows("abcdef"), rows("abcdef", 10)
    assert len(above(0, claims, source, target, [1, 1, 1, 1, 2, 2]).above) == 1
    verdict = above(0, claims, source, target, [1, 1, 2, 2, 2, 2])
    assert (len(verdict.above), len(verdict.uncertain)) == (0, 2)


def test_a_position_that_landed_late_does_not_count() -> None:
    sampler = PositionSampler("127.0.0.1:1", "A")
    for offset, lease in ((10, (1, 1)), (20, (2, 0)), (11, (1, 2)), (30, (2, 1))):
        sampler._note(Position("t", 0, offset), lease)
    assert sampler.latest == {("t", 0): 30}
    assert len(sampler.back) == 1
    assert "11 after 20" in sampler.back[0]
    sampler._note(Position("t", 0, 5), ())  # a user's
    assert sampler.latest == {("t", 0): 5}
