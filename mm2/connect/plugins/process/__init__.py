"""Connectors and tasks that run in their own process (``plugin.isolation=process``).

values     encoding of records, schemas and other values in messages
peer       calls in both directions over a socket, each answered on the thread that waits for it
child      the process: the plugin and its view of the runtime
remote     the worker's side: proxies of a connector or task in another process
"""
