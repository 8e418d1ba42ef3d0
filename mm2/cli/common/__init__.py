"""What verbs share: the flow of a file, requests to a process, and what is printed."""
