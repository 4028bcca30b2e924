"""Folders of public data sets and of cached arrays."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Cache folder of this library: ``$XDG_CACHE_HOME/setwise``, else ``~/.cache/setwise``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "setwise"


def data_folder() -> Path:
    """Folder of the public data sets: ``$SETWISE_DATA``, else the cache folder."""
    folder = os.environ.get("SETWISE_DATA")
    return Path(folder).expanduser() if folder else cache_folder()
