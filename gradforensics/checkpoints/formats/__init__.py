"""One module per file format: bytes -> plain data and tensor references."""
