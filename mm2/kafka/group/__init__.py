"""The thread of a group member, and the classic group protocol."""
