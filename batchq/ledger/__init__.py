"""Who holds what, and what is committed."""
