"""Tunnels: TCP connections that go through another connection, on ways that are kept open."""
