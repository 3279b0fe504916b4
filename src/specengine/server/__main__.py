"""`python -m specengine.server`."""

import logging
import os
import sys

from specengine.server.command import main

if __name__ == "__main__":
    code = main()
    # All is said and closed. Taking modules and weights apart one by one would keep whoever waits
    # for the end, and a core, for a quarter of a second.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
