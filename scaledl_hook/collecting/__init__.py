"""Real training steps of many small configurations, measured on this machine."""
