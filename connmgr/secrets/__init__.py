"""Keys and secrets: the vault's key, the principals' key pairs, and the sealed form of a secret. No database here."""
