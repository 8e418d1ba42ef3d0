"""Tables of all keys, their effects, and how two sets of values differ."""
