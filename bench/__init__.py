"""Benches: comparisons with Java's MirrorMaker 2 that anybody can run again with bin/bench."""
