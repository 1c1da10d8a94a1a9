"""Hostile arguments for everything public: random shapes, dtypes, strides, NaN, Inf, empty axes, huge numbers.

    python -m tests.fuzz --cases 100000 --seed 0

A case is a pure function of (seed, number), so that any can be repeated: `--only NUMBER` runs and describes it.
Its outcome may be a finite result; a ValueError or TypeError that names the argument; NaN or Inf that came in with
the arguments; Inf where the true number, computed in fp64, is beyond the dtype. Anything else is unexplained.
"""
