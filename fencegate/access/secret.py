"""A secret in a file of its own: one line, read each time that it is needed, since secrets rotate."""

from __future__ import annotations

from pathlib import Path


def secret_line(path: str) -> str:
    """The line, without its end. Raises ``ValueError`` saying why there is none, never showing what the file holds."""
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or type(error).__name__}") from None
    except UnicodeDecodeError:
        raise ValueError(f"cannot use {path}: not ASCII") from None
    if not text or not text.isprintable() or " " in text:
        raise ValueError(f"cannot use {path}: it must hold one line of visible characters, the secret")
    return text
