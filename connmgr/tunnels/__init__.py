"""Tunnels: TCP connections through another connection, whose link is kept open."""
