"""The lanes of a job, how many it has, and the slots they need."""
