"""Parts of bin/soak and bin/chaos: the product under test, its traffic, and the check of the copied records."""
