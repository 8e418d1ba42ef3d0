"""A consumer that shares topics with the other members of its group (Java's KafkaConsumer, classic protocol).

settings     the Java-style keys, typed
assignors    assignment of partitions to members: kafka-python's algorithms with the encoding of the group protocol
membership   the group member (`mm2.kafka.classic_member`) and its subscribed topics; runs a thread
fetching     Fetch sessions that read each partition one chunk ahead; runs a thread
consumer     the public class: poll, commit, pause, seek, and the rebalance listener
"""
