"""Where public data and what was made of them are kept on this machine."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """The user's cache folder for this library: ``$XDG_CACHE_HOME/setwise``, else ``~/.cache/setwise``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "setwise"


def data_folder() -> Path:
    """The folder with the public data sets: ``$SETWISE_DATA``, else the cache folder."""
    given = os.environ.get("SETWISE_DATA")
    return Path(given).expanduser() if given else cache_folder()
