"""Compiled models in one file: `container` is the file, `values` writes what is compiled as JSON,
`models` puts both together, and `kept` has such files in the cache."""
