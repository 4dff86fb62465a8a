"""What a sandboxed worker may do: policy types, loading, layering and decisions. Pure."""
