"""What has been copied: sessions, the ledger, positions, and offset translation by segments."""
