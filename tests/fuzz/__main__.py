"""python -m tests.fuzz --cases 100000 --seed 0 --save results/fuzz.json"""

from __future__ import annotations

import sys

from .run import main

sys.exit(main())
