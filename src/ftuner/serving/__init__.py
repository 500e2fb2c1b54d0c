"""Serving: requests of many callers in batches, texts while they are generated, embeddings."""
