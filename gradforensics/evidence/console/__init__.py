"""Console logs: the grammar of their lines, dialects as data, and whole blocks of alike lines at once."""
