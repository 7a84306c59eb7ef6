"""What is done to a document."""
