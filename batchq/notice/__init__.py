"""Signs that this worker will soon be stopped."""
