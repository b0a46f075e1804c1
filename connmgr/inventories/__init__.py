"""Inventories: connections that follow a list of hosts that something else keeps."""
