"""What is compared and how. Pure."""
