"""The one program of skep that runs inside the sandbox: hand listeners out, attest, exec."""
