"""`python -m specengine.server`."""

import sys

from specengine.server.command import main

if __name__ == "__main__":
    sys.exit(main())
