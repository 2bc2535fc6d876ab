"""The demo on real input: a published release, its own tests, a bug that its authors mended later."""
