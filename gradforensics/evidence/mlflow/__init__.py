"""What MLflow records of a run, in its file store and in its databases."""
