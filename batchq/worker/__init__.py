"""From a claim to a commit. Read `pipeline` first."""
