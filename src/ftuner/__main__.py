"""`python -m ftuner`: the command line."""

from ftuner.cli.main import app

app(prog_name="ftuner")
