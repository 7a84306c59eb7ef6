"""What there is to process."""
