"""The graph network learns from a run while it goes on, in a process of its own."""
