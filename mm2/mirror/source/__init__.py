"""What source tasks copy: assignment of partitions, start positions, and changes of records."""
