"""The vault as files: exported, applied, and imported from what other tools write."""
