"""What `gradforensics env` tells of the node where it runs: collected, saved, and shown."""
