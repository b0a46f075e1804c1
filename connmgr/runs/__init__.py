"""Runs: one command on many connections, kept in the vault, continued by whichever daemon lives."""
