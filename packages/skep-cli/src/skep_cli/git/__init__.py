"""git of the host and its formats. What a worker could write is read here, and never obeyed."""
