"""Histories recorded from real runs, with the events they decode to; `python -m tests.golden.record` records them anew."""
