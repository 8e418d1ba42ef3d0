"""Spark's Kafka connector, which is not among the jars of PySpark."""

from typing import Final

from mm2.sandbox.jars import JarSet, fetch

#: The newest version of the connector that the Maven registry has; later versions of Spark can use it.
VERSION: Final = "4.2.0"
SPARK_KAFKA: Final = JarSet(f"spark-sql-kafka-{VERSION}", (("org.apache.spark", "spark-sql-kafka-0-10_2.13", VERSION),))
#: Its other dependencies are jars of PySpark.
_MODULES: Final = ("spark-sql-kafka-", "spark-token-provider-kafka-", "kafka-clients-", "commons-pool2-")


def spark_kafka_jars() -> str:
    """The value of `spark.jars`, downloaded if needed. Raises SandboxError."""
    return ",".join(str(path) for path in sorted(fetch(SPARK_KAFKA).glob("*.jar")) if path.name.startswith(_MODULES))
