"""What becomes of records that cannot be processed (KIP-298, KIP-610; spec connect D.14).

tolerance     steps that may be repeated, and whether a failure ends the task
reporters     the log
dead_letters  the dead letter queue of a sink connector
errant        records that a sink task gives back
"""
