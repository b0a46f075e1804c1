"""The vault's schema, one file a revision under ``versions``, in Alembic's form."""
