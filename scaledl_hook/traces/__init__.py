"""Reads Chrome traces of torch.profiler (Kineto) of any version; pure, without torch."""
