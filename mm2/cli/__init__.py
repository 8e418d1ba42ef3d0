"""The command-line programs: one module per command, each with a `main` that returns the exit code."""
