"""`python -m gradforensics`."""

from gradforensics.cli import entry

if __name__ == "__main__":
    entry()
