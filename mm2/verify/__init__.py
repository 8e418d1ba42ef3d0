"""`mm2 verify`: compares the records on the target with those on the source. See docs/how-to/verify.md."""
