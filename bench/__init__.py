"""Benchmarks: Salience and its peers on the same work, one after the other, on one machine. `python -m bench`."""
