"""Linux backend of skep: a policy compiled to Bubblewrap, seccomp and a guarded process tree."""
