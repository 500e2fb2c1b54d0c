"""Published architectures as exporters write them: each loads, is right, and is timed."""
