"""A checked model of copy sessions (docs/explanation/copy-sessions.md), small enough to visit every state."""
