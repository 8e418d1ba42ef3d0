"""A consumer that shares its topics with the other members of its group (KafkaConsumer of Java, classic protocol).

settings     the Java-style keys, typed
assignors    which member gets which partition: kafka-python's algorithms in the dress of the group protocol
membership   find the coordinator, join, sync, heartbeat: a thread of its own
fetching     raw Fetch sessions, one chunk of each partition ahead: a thread of its own
consumer     what its user sees: poll, commit, pause, seek, and the rebalance listener
"""
