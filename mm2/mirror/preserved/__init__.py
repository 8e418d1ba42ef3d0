"""Topics with preserved offsets: which, shared by two flows, and gaps at their beginning."""
