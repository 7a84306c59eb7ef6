"""`python -m batchq` is `batchq`."""

import sys

from batchq.cli import process

if __name__ == "__main__":
    sys.exit(process())
