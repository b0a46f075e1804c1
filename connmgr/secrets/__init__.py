"""Keys and secrets, without a database: the vault's key, the principals' key pairs, and sealed secrets."""
