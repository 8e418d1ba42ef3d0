"""Creates the class archive (AppCDS) of Spark's JVM: `python -m mm2.copy.driver.archive`, run by bin/setup.

Half of Spark's start time is spent on finding, parsing and verifying about 7,000 classes, which the archive contains.
It is valid for this Java and these jars at this path; otherwise Java ignores it.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path

import structlog

from mm2.copy.driver.jvm import SparkUnavailable, archive_file
from mm2.copy.driver.settings import spark_props
from mm2.copy.driver.spark import Spark, warm_up

_EXIT_S = 120.0


def build(target: Path) -> None:
    """Start Spark, run a job, and have Java archive the loaded classes. Raises SparkUnavailable or OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)  # otherwise its classes would be used and not be in the new one
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix="spark", suffix=".jsa")
    os.close(descriptor)
    scratch = Path(name)
    scratch.unlink()
    options = (f"-XX:ArchiveClassesAtExit={scratch}", "-Xlog:disable", "-Xlog:all=error:stderr")
    spark = Spark(spark_props({}), options, attempts=1)
    try:
        spark.start()
        context = spark.context(120.0)
        warm_up(context)
        context.cancelJobGroup("none")
    finally:
        spark.stop(_EXIT_S, exit_s=_EXIT_S)
    if not scratch.exists():
        raise SparkUnavailable("Java did not write the archive")
    scratch.chmod(0o644)
    scratch.rename(target)


def main() -> int:
    """The exit code: 1 without an archive, which delays each start by a second and has no other effect."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        build(archive_file())
    except (SparkUnavailable, OSError) as error:
        sys.stderr.write(f"Spark will start more slowly: {error}.\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
