import sys

from kvhub_front.cli import main

sys.exit(main())
