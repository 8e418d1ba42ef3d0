from mm2.mirror.provenance import Path, extended, gives_way, loops

A_AT_5: Path = (("a", 5),)


def test_a_topic_created_on_the_source_is_claimed_with_one_hop() -> None:
    assert extended([], "a", "b", 5) == (A_AT_5,)


def test_a_claim_continues_the_route_of_the_source_s_claim() -> None:
    assert extended([A_AT_5], "b", "c", 7) == ((("b", 7),), (("a", 5), ("b", 7)))


def test_what_comes_from_the_target_closes_a_loop_over_the_clusters_between() -> None:
    before, loop = ("x", 1), (("a", 5), ("b", 7))
    assert loops([(before, *loop)], "a") == [loop]
    assert loops([(before, *loop)], "c") == []
    # It is not extended: that would make endless paths.
    assert extended([(before, *loop)], "c", "a", 9) == ((("c", 9),),)


def test_only_the_youngest_flow_of_a_loop_rejects_the_topic() -> None:
    hops = [("a", 5), ("b", 7), ("c", 6)]
    youngest = [own for own in hops if gives_way(tuple(hop for hop in hops if hop != own), own)]
    assert youngest == [("b", 7)]


def test_of_two_flows_started_in_the_same_millisecond_one_rejects_the_topic() -> None:
    assert gives_way((("a", 5),), ("b", 5))
    assert not gives_way((("b", 5),), ("a", 5))
