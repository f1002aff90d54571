import sys

from kvhub.cli import main

sys.exit(main())
