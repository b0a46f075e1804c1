"""OpenSSH's own ssh, and what runs over it, at the daemon's control sockets."""
