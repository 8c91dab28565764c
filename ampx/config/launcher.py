"""Where a trial runs."""

from typing import Literal

from ampx.config.fields import Settings


class LauncherSettings(Settings):
    kind: Literal["local"]
