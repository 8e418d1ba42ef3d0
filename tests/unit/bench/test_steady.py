import struct
import time

import pytest

from bench.stamps import STAMPS, VALUE_BYTES
from bench.steady import Template
from mm2.kafka.records.batch import check_crc, iter_batches
from mm2.kafka.records.record import decode_batch


@pytest.mark.parametrize("records", [1, 10])
def test_each_record_has_the_time_of_its_batch(records: int) -> None:
    template = Template(records)
    for _ in range(2):
        before = time.monotonic_ns()
        (batch,) = iter_batches(memoryview(template.batch()))
        assert batch.header is not None
        check_crc(batch.header, batch.data)
        assert [len(record.value or b"") for record in decode_batch(batch)] == [VALUE_BYTES] * records
        stamps = STAMPS.findall(bytes(batch.data))
        assert len(stamps) == records
        for (made_ns,) in map(struct.Struct(">q").unpack, stamps):
            assert before <= made_ns <= time.monotonic_ns()
