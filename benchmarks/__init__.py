"""ftuner against its peers: declarative cases, interleaved timing, results saved as JSON."""
