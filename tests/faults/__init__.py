"""Faults on purpose: kills, full disks, NaN, lost ranks, long runs, two at once; `make faults` tries all.

One file per fault, each with `try_all(folder, full)`, which asserts that nothing is lost and returns how often it
tried; quick sizes run with the tests.
"""
