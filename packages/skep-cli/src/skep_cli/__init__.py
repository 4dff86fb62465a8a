"""Run an untrusted worker inside the operating system's own sandbox and get a verified patch back."""
