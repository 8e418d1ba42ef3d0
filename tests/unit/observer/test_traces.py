"""The one-line summary of a stack trace."""

from __future__ import annotations

import pytest

from mm2.observer.traces import reason_of

PYTHON = """Traceback (most recent call last):
  File "tasks/base.py", line 7, in run
    self._start()
OSError: no such folder

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "tasks/base.py", line 9, in run
mm2.connect.errors.ConnectError: Couldn't find or create file 'a.txt' for FileStreamSinkTask
"""
JAVA = """org.apache.kafka.connect.errors.ConnectException: Couldn't find or create file 'a.txt' for FileStreamSinkTask
\tat org.apache.kafka.connect.file.FileStreamSinkTask.start(FileStreamSinkTask.java:77)
Caused by: java.nio.file.NoSuchFileException: a.txt
\t... 10 more
"""


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        (PYTHON, "ConnectError: Couldn't find or create file 'a.txt' for FileStreamSinkTask"),
        (JAVA, "ConnectException: Couldn't find or create file 'a.txt' for FileStreamSinkTask"),
        ("java.lang.NullPointerException\n\tat a.B.c(B.java:1)", "NullPointerException"),
        ("kafka.example.com:9092: connection refused.", "kafka.example.com:9092: connection refused."),
        ("", ""),
        ("\n \n", ""),
    ],
)
def test_the_error_line_of_a_stack_trace_is_found(trace: str, reason: str) -> None:
    assert reason_of(trace) == reason
