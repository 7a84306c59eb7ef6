"""Batch inference over a pile of documents, with one committed result for each."""

__version__ = "0.1.0"
