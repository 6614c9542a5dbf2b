"""Measurements, each a ratio against a peer in the same run. ``python -m bench``; see README.md here."""
