"""The steps of a distributed herder's tick, in their order."""
