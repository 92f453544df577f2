"""The user's own script run for a few steps at other counts, and links timed: ``scaledl probe``."""
