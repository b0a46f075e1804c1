"""connmgr: a local daemon that manages connections to machines over an HTTP JSON API."""

__version__ = "0.1.0"
