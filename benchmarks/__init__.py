"""Side-by-side measurements; results go to results/bench as JSON with commit, hardware and versions."""
