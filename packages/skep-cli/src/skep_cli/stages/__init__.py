"""A run, stage by stage, and how each of its commands is run."""
