"""The version of ftuner."""

VERSION = "0.1.0"
