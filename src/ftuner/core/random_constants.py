"""Constants of the random numbers of `core.random_numbers`, which code generators share."""

ROUNDS = 10
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
INCREMENTS = 0x9E3779B9, 0xBB67AE85
"""What each round adds to the words of the key: parts of the golden ratio and of sqrt(3)."""
RADIUS_BITS = {"float32": 31, "float64": 52}
"""Upper bits of a 64-bit word that give the radius of a normal number, by dtype. 1/2 is added to
them, so that the logarithm is never of 0."""
ANGLE_BITS = {"float32": 32, "float64": 64}
"""Bits that give its angle: the lower ones of the same word, or all of another word."""
