"""The tree a worker gets, laid out before it and compared after it."""
