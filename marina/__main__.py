"""`python -m marina`."""

import sys

from marina import main

if __name__ == "__main__":
    sys.exit(main())
