"""``python -m api``: the one way to start the server. ``python -m api token --sub NAME`` signs a token."""

import gc
import sys

if __name__ == "__main__":
    # What is loaded stays: to look for garbage in it, again and again as it grows, takes a tenth of the start.
    gc.disable()
    from api.command import main

    sys.exit(main())
