"""Evidence -> verdicts -> diagnosis. Nothing in here opens a file of the evidence."""
