"""The vault's schema, one file per revision under ``versions``, in Alembic's form."""
