"""`python -m batchq` is `batchq`."""

import sys

from batchq.cli import main

if __name__ == "__main__":
    sys.exit(main())
