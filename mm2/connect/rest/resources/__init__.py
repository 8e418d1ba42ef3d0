"""The resources of the REST interface, one router per first path segment."""
