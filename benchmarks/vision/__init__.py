"""Networks that see, and convolutions one by one, against the peers: see `__main__`."""
