"""Signers of SSH certificates: stored, limited, asked and checked."""
