"""Keys land where the clients of Kafka put them."""

from __future__ import annotations

import aiokafka.partitioner
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.runtime.log_partitioner import murmur2, partition_of


@pytest.mark.parametrize(
    ("data", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_the_java_client(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed % 2**32


@given(st.binary(max_size=40), st.integers(1, 50))
@settings(max_examples=100, deadline=None)
def test_the_partition_is_that_of_aiokafka(key: bytes, partitions: int) -> None:
    everywhere = list(range(partitions))
    theirs = aiokafka.partitioner.DefaultPartitioner()(key, everywhere, everywhere)
    assert partition_of(key, partitions) == theirs
