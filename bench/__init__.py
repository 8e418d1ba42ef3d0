"""Benchmarks: comparisons with Java's MirrorMaker 2 that can be reproduced with bin/bench."""
