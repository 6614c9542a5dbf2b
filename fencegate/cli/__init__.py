"""The command line: one file per command. ``main.py`` finds them, ``loading.py`` reads what settings name."""
