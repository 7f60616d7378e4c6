"""Two runs beside each other: from which step on they differ, in what else they differ, and what could explain it."""
