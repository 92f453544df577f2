"""Forecasts from measurements: the analytic step model, what-if and ETA."""
