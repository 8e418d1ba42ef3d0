"""A consumer that shares topics with the other members of its group (Java's KafkaConsumer, both group protocols).

settings     the Java-style keys, typed
assignors    assignment of partitions to members: kafka-python's algorithms with the encoding of the group protocol
membership   what the consumer and its group membership exchange; the subscribed topics
classic_membership, server_assigned   the memberships of the two group protocols; each runs a thread
fetching     Fetch sessions that read each partition one chunk ahead; runs a thread
consumer     the public class: poll, commit, pause, seek, and the rebalance listener
"""
