"""The command line: ``scaledl runs | show | what-if | import | probe | collect | doctor``."""


def main() -> None:
    """Run the command line; typer is loaded here, not when the package is imported."""
    from scaledl.cli.app import app

    app(prog_name="scaledl")
