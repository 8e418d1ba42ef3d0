"""The programs, each with a `main` that returns the exit code. The verbs of `mm2` are in the folders."""
