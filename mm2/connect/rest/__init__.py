"""The REST interface of a worker: resources, forwarding to the worker that can handle a request, and the server."""
