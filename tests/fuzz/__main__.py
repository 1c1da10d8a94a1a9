"""python -m tests.fuzz --cases 100000 --seed 0 --save results/fuzz.json"""

import sys

from .run import main

sys.exit(main())
