"""How fast skep is, beside what people use instead, measured side by side in one run. See README.md."""
