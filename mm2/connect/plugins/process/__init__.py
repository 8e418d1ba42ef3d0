"""Connectors and tasks that run in a process of their own (``plugin.isolation=process``).

frames     messages over a socket
values     how records, schemas and the like are told in them
peer       calls in both directions, each answered on the thread that waits for it
child      the process: the plugin and what it sees of the runtime
remote     the worker's side: a connector, or a task, that is elsewhere
"""
