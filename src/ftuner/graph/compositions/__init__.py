"""Compositions of graph operators that several front ends share, in the algebra of graph values."""
