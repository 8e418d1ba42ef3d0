"""Building blocks of pages: tables, charts, words, and actions through REST."""
