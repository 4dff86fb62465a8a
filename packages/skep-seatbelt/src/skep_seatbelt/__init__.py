"""macOS backend of skep: a policy compiled to a Seatbelt profile."""
