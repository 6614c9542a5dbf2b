"""``python -m fencegate``: the same as the command ``fencegate``."""

from fencegate.cli.main import main

if __name__ == "__main__":
    main()
