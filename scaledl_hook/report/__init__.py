"""Records in, text out; loads without torch and never prints."""
