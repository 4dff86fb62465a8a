"""The folder of a run: what happened, in files that hold each other."""
