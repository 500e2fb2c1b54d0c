"""What PyInstaller needs to know of ftuner: modules that are imported by name, and data."""
