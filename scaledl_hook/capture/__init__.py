"""What touches torch: rank-local sensors that return records."""
