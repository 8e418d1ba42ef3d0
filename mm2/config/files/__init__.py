"""What files and Java's options contain: properties, secrets that are replaced, regular files."""
