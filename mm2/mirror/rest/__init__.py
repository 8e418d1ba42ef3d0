"""The REST interface of the process, what it hides, and what its clients may configure."""
