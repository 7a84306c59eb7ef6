"""Where results lie."""
