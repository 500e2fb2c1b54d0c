"""The version of ftuner."""

VERSION = "0.2.0"
