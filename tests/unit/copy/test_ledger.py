from mm2.copy.ledger import Ledger, entry_record
from mm2.copy.session import Entry, Mark
from mm2.kafka.structs import TopicPartition


def test_a_rate_holds_as_long_as_its_entry_is_written() -> None:
    ledger = Ledger()
    assert ledger.rates() == {}
    for partition, written_ms in ((0, 1_000_000), (1, 1_030_000), (2, 969_999), (3, 1_000_000)):
        row = entry_record(Entry("t", partition, "A.t", Mark(0, 0, 0), rate=7))
        ledger.apply(row.key, row.value, written_ms)
    assert ledger.rates() == {TopicPartition("t", partition): rate for partition, rate in enumerate((7, 7, 0, 7))}
    row = entry_record(Entry("t", 3, "A.t", Mark(9, 9, 9), rate=8))
    ledger.apply(row.key, row.value, 1_040_000)
    assert ledger.rates() == {TopicPartition("t", partition): rate for partition, rate in enumerate((0, 7, 0, 8))}
