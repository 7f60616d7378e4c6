"""From a run directory to Evidence: discovery, readers, runs and attempts, settings, events, and how a run ended."""
