"""Hostile arguments for everything public: random shapes, dtypes, strides, NaN, Inf, empty axes, huge numbers.

    python -m tests.fuzz --cases 100000 --seed 0

A case is a pure function of (seed, number), so that any of them can be had again: `--only NUMBER` says what it was.
What may come of one: a finite result; a ValueError or TypeError that names the argument; NaN or Inf that came in with
the arguments; Inf where the true number, computed in fp64, is beyond the dtype. Anything else is unexplained.
"""
