"""The names and descriptions of metrics, and the format of a scrape. Does not depend on where the values come from."""
