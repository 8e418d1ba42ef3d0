"""The entrypoint of the image: connect-mirror-maker, or an executor of Spark on Kubernetes.

Spark starts executor pods with the argument ``executor`` and describes the executor in environment variables
(org.apache.spark.deploy.k8s.features.BasicExecutorFeatureStep); the entrypoint of the image has to make a command of them, as that of
Spark's own image does.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Final

from mm2.cli import connect_mirror_maker
from mm2.copy.driver.jvm import MODULE_OPTIONS, SparkUnavailable, classpath, java_executable

_BACKEND: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_ARGUMENTS: Final = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
_MEMORY: Final = "SPARK_EXECUTOR_MEMORY"
_JAVA_OPTION: Final = re.compile(r"SPARK_JAVA_OPT_(\d+)")


def executor_command(environment: Mapping[str, str]) -> list[str]:
    """The command of an executor. Raises SparkUnavailable."""
    missing = [name for name in (*_ARGUMENTS.values(), _MEMORY) if not environment.get(name)]
    if missing:
        raise SparkUnavailable(f"an executor is started by Spark only, which sets {', '.join(missing)}")
    numbered = ((_JAVA_OPTION.fullmatch(name), value) for name, value in environment.items())
    options = [value for _, value in sorted((int(found[1]), value) for found, value in numbered if found)]
    folders = [environment.get("SPARK_CONF_DIR", ""), classpath(), environment.get("SPARK_EXTRA_CLASSPATH", "")]
    return [
        java_executable(),
        *MODULE_OPTIONS,
        *options,
        f"-Xms{environment[_MEMORY]}",
        f"-Xmx{environment[_MEMORY]}",
        "-cp",
        os.pathsep.join(folder for folder in folders if folder),
        _BACKEND,
        *(word for argument, name in _ARGUMENTS.items() for word in (argument, environment[name])),
    ]


def main() -> int:
    """Run connect-mirror-maker, or replace this process by that of an executor."""
    if sys.argv[1:2] != ["executor"]:
        return connect_mirror_maker.main()
    try:
        command = executor_command(os.environ)
        os.execv(command[0], command)  # noqa: S606
    except SparkUnavailable as error:
        sys.stderr.write(f"{error}\n")
    return connect_mirror_maker.EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
