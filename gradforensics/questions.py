"""The experiments of a replay by name (a leaf that costs nothing to import: `--help` lists them)."""

from __future__ import annotations

# Every experiment and its question, in the order in which they run.
QUESTIONS: dict[str, str] = {
    "reproduce": "Does the step come out as it was recorded, and the same each time?",
    "anomaly": "Where is the first value made that is NaN or infinite?",
    "precision": "In which precision does the step fail, and which module leaves the range?",
    "batch": "Which sample and which token carry the failure, the loss or the gradient?",
    "severed": "Which trainable parameters get no gradient, and where is the graph cut?",
    "content": "Do the ids, labels and masks of the batch fit the model and each other?",
    "accumulation": "Is the accumulated gradient that of the whole batch?",
    "padding": "Do left-padded, right-padded and unpadded samples give the same loss?",
    "checkpointing": "Does activation checkpointing change the gradient?",
    "fix": "Is the failure gone with the other program, and there without it?",
}
