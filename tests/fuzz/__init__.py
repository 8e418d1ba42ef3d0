"""Bytes that nobody would send: seeds, how they are damaged, what reads them, and the loop that looks for surprises."""
