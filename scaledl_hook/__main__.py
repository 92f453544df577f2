"""``python -m scaledl``: the command line."""

from scaledl.cli import main

if __name__ == "__main__":
    main()
