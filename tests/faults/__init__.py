"""Faults of workers, brokers and the network. A package, so that its brokers stop when its last test has run."""
