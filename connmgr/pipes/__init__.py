"""Live processes of remote hosts and the clients that watch them, each an endpoint of :mod:`connmgr.streams`."""
