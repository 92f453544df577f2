"""Device sensors behind one protocol."""
