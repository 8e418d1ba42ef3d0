"""A checked model of copy sessions (docs/design/copy-sessions.md), small enough to visit every state."""
