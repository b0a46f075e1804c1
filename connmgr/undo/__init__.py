"""What tokens change in files: the state before, kept encrypted, and putting it back."""
