"""A consumer that shares its topics with the other members of its group (KafkaConsumer of Java, classic protocol).

settings     the Java-style keys, typed
assignors    which member gets which partition: kafka-python's algorithms in the dress of the group protocol
membership   a member of the group (`mm2.kafka.classic_member`) that looks after its topics: a thread of its own
fetching     raw Fetch sessions, one chunk of each partition ahead: a thread of its own
consumer     what its user sees: poll, commit, pause, seek, and the rebalance listener
"""
