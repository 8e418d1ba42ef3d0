"""What bin/soak and bin/chaos are made of: the product under test, its traffic, and the judge of what arrived."""
