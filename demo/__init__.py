"""The demos play on a stage of their own (a home, a work folder) and fail when a step is not what its heading says."""
