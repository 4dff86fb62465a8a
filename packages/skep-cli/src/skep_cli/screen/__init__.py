"""What a person sees, without anything a worker could forge."""
