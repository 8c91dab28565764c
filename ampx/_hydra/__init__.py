"""Everything that touches Hydra, but for `ampx.run`. Its plugins are found in `hydra_plugins/`."""
