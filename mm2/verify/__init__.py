"""`mm2 verify`: is what lies on the target what lies on the source? See docs/VERIFY.md."""
