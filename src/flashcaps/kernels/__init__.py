"""Fused twins of the routing files, same stems: they take `Votes` and never store a vote. `dispatch` is the door.

attend/ has what dynamic, attention and discriminative share (dot products), fit/ what em and heinsen share (Gaussians),
common/ what is not about routing.
"""
