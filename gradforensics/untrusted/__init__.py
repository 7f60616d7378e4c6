"""Opening what may be hostile: files, zip records and pickles that can only become data. Nothing is executed."""
