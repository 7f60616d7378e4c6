"""W&B's binary log of a run (run-ID.wandb): framing, protobuf fields, histories, and what the run says of itself."""
