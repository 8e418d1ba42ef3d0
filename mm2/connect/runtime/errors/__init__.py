"""Handling of records that cannot be processed (KIP-298, KIP-610).

tolerance  steps that may be retried, and whether a failure ends the task
reporters  the worker's log, the dead letter queue of a sink connector, and records that a sink task reports
"""
