"""Who caused which work of a device: pure, without torch, for live profiles and for traces."""
