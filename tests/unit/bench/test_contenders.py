from dataclasses import replace

from bench.conditions import Conditions
from bench.contenders import CONTENDERS, JAVA_DEFAULT, JAVA_TUNED, OURS, Flow


def flow(conditions: Conditions) -> Flow:
    return Flow("A1", "B1", "near:1", "far:2", "bench", conditions, {"security.protocol": "SSL"})


def test_all_contenders_write_with_the_same_acks() -> None:
    for contender in CONTENDERS:
        properties = contender.properties(flow(Conditions()))
        assert properties.get("B1.producer.acks", "all") == "all"


def test_all_contenders_get_the_same_file_except_their_own_settings() -> None:
    common = flow(Conditions()).properties()
    for contender in CONTENDERS:
        assert common.items() <= contender.properties(flow(Conditions())).items()
    assert OURS.properties(flow(Conditions())) == JAVA_DEFAULT.properties(flow(Conditions())) == common


def test_settings_added_by_a_benchmark_go_to_all_contenders() -> None:
    slow = replace(flow(Conditions()), more={"refresh.topics.interval.seconds": "20"})
    assert all(one.properties(slow)["refresh.topics.interval.seconds"] == "20" for one in CONTENDERS)


def test_clients_of_both_clusters_get_their_connection_settings() -> None:
    properties = flow(Conditions(tls=True)).properties()
    assert properties["A1.security.protocol"] == properties["B1.security.protocol"] == "SSL"


def test_a_transformation_is_configured_for_all() -> None:
    for contender in (OURS, JAVA_DEFAULT, JAVA_TUNED):
        assert contender.properties(flow(Conditions(insert_header=True)))["A1->B1.transforms"] == "header"
        assert "A1->B1.transforms" not in contender.properties(flow(Conditions()))


def test_exactly_once_is_on_for_all_and_read_on_the_source() -> None:
    for contender in CONTENDERS:
        properties = contender.properties(flow(Conditions(exactly_once=True)))
        assert properties["B1.exactly.once.source.support"] == "enabled"
        assert properties["A1.consumer.isolation.level"] == "read_committed"
        assert ("dedicated.mode.enable.internal.rest" in properties) == contender.is_java


def test_the_tuned_contender_ends_transactions_by_interval() -> None:
    assert JAVA_TUNED.properties(flow(Conditions(exactly_once=True)))["A1->B1.transaction.boundary"] == "interval"
    assert "A1->B1.transaction.boundary" not in JAVA_TUNED.properties(flow(Conditions()))
