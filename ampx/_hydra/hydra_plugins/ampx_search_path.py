"""Adds the directories in `$AMPX_CONF`, separated as in `$PATH`, to where config groups are looked for."""

import os
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from ampx.config.errors import ConfigError


class AmpxSearchPath(SearchPathPlugin):
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for directory in filter(None, os.environ.get("AMPX_CONF", "").split(os.pathsep)):
            path = Path(directory).expanduser().absolute()
            if not path.is_dir():
                raise ConfigError(f"AMPX_CONF={directory}: is no directory; create it, or unset AMPX_CONF")
            search_path.append("AMPX_CONF", f"file://{path}")
