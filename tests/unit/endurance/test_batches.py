from tests.endurance.batches import EVENT, BatchCount


def _line(task: int, batches: int) -> dict[str, object]:
    return {"event": EVENT, "flow": "A->B", "connector": "MirrorSourceConnector", "task": task, "batches": batches}


def test_counts_of_tasks_add_up_and_a_restarted_task_counts_on() -> None:
    count = BatchCount()
    assert not count.add_line({"event": "Spark is up"}, 0.0)
    assert count.add_line(_line(0, 10), 1.0)
    assert count.add_line(_line(1, 5), 1.0)
    assert not count.add_line(_line(0, 10), 2.0)
    assert count.add_line(_line(0, 3), 3.0)
    assert count.total == 18


def test_batch_times_are_between_the_reported_times() -> None:
    count = BatchCount()
    count.add_line(_line(0, 0), 100.0)
    count.add_line(_line(0, 10), 110.0)
    count.add_line(_line(0, 30), 120.0)
    assert count.time_s(5) == 105.0
    assert count.time_s(10) == 110.0
    assert count.time_s(20) == 115.0
    assert count.time_s(99) == 120.0
