"""What users type: one module per command, each with a `main` that returns the exit code."""
