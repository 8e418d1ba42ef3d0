"""A Structured Streaming job with a checkpoint, run as a program: `spark_stream.py JARS BROKERS TOPIC ISOLATION FOLDER`.

It reads what the topic has since its last run, up to 40 records in a batch, and appends the partition and the offset of each record to
JSON files in FOLDER/out. Its checkpoint is in FOLDER/checkpoint.
"""

import sys

from pyspark.sql import SparkSession


def main(jars: str, brokers: str, topic: str, isolation: str, folder: str) -> None:
    """Run until the end offsets at the start of the job are reached."""
    settings: dict[str, bool | float | int | str | None] = {
        "spark.jars": jars,
        "spark.driver.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    options = {
        "kafka.bootstrap.servers": brokers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "40",
        "kafka.isolation.level": isolation,
    }
    records = spark.readStream.format("kafka").options(**options).load().select("partition", "offset")
    output = {"path": f"{folder}/out", "checkpointLocation": f"{folder}/checkpoint"}
    records.writeStream.format("json").options(**output).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
