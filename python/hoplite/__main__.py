"""`python -m hoplite` runs the command `hoplite`."""

import sys

from hoplite.cli import main

sys.exit(main())
