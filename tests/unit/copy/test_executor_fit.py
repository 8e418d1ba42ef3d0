"""An executor with another version of this package, of Python, or without packages, is reported in one sentence."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from mm2 import __version__
from mm2.copy.driver.spark import failure_of
from mm2.copy.spec import Assignment, OtherVersion

LOST = "org.apache.spark.SparkException: Job aborted due to stage failure: Lost task 0.0 (host executor 0)"
#: The messages of Spark 4.3, shortened.
PYTHON = """\
An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/opt/mm2/lib/python3.11/site-packages/pyspark/worker_util.py", line 93, in check_python_version
    raise PySparkRuntimeError(
pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.11
Please check environment variables PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON are correctly set.
"""
MISSING = f"""\
An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: {LOST}: org.apache.spark.SparkException:{" "}
Error from python worker:
  /usr/bin/python3: Error while finding module specification for 'mm2.copy.executor.daemon' (ModuleNotFoundError: No module named 'mm2')
PYTHONPATH was:
  /opt/spark/python
"""


@pytest.mark.parametrize(("version", "named"), [("0.0.9", "0.0.9"), (None, "an older version")])
def test_an_assignment_of_another_version_is_rejected(version: str | None, named: str) -> None:
    given = asdict(Assignment("b", "localhost", 1, "00"))
    assert Assignment.of(json.dumps(given)).batch == "b"
    given["version"] = version
    with pytest.raises(OtherVersion, match=f"^the executor has mm2 {__version__}, and the driver {named}: install"):
        Assignment.of(json.dumps({**given, "key": "of that version"}))


@pytest.mark.parametrize(("error", "named"), [(PYTHON, "PYTHON_VERSION_MISMATCH"), (MISSING, "No module named 'mm2'")])
def test_what_python_reports_is_the_reason(error: str, named: str) -> None:
    reason = failure_of(Exception(error))
    assert named in reason
    assert "\n" not in reason
    assert "Traceback" not in reason
