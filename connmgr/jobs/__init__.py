"""Commands that run on the remote side independently of the link, the shell and the daemon that started them."""
