"""The running shells: starting, finding and ending them by connection."""
