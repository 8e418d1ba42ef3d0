from dataclasses import replace

from bench.conditions import Conditions
from bench.contenders import CONTENDERS, JAVA_DEFAULT, JAVA_TUNED, OURS, Flow


def flow(conditions: Conditions) -> Flow:
    return Flow("A1", "B1", "near:1", "far:2", "bench", conditions, {"security.protocol": "SSL"})


def test_nobody_writes_with_fewer_acks_than_the_others() -> None:
    for contender in CONTENDERS:
        properties = contender.properties(flow(Conditions()))
        assert properties.get("B1.producer.acks", "all") == "all"


def test_all_get_the_same_file_but_for_their_own_settings() -> None:
    common = flow(Conditions()).properties()
    for contender in CONTENDERS:
        assert common.items() <= contender.properties(flow(Conditions())).items()
    assert OURS.properties(flow(Conditions())) == JAVA_DEFAULT.properties(flow(Conditions())) == common


def test_what_a_bench_adds_to_the_file_all_get() -> None:
    slow = replace(flow(Conditions()), more={"refresh.topics.interval.seconds": "20"})
    assert all(one.properties(slow)["refresh.topics.interval.seconds"] == "20" for one in CONTENDERS)


def test_both_clusters_clients_are_told_how_to_connect() -> None:
    properties = flow(Conditions(tls=True)).properties()
    assert properties["A1.security.protocol"] == properties["B1.security.protocol"] == "SSL"


def test_exactly_once_is_on_for_all_and_read_on_the_source() -> None:
    for contender in CONTENDERS:
        properties = contender.properties(flow(Conditions(exactly_once=True)))
        assert properties["B1.exactly.once.source.support"] == "enabled"
        assert properties["A1.consumer.isolation.level"] == "read_committed"
        assert ("dedicated.mode.enable.internal.rest" in properties) == contender.is_java


def test_the_tuned_one_ends_transactions_by_the_clock() -> None:
    assert JAVA_TUNED.properties(flow(Conditions(exactly_once=True)))["A1->B1.transaction.boundary"] == "interval"
    assert "A1->B1.transaction.boundary" not in JAVA_TUNED.properties(flow(Conditions()))
