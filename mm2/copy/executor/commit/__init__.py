"""Commits of positions, of the ledger and of offset syncs, also in transactions."""
