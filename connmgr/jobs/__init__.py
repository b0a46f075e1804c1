"""Commands that run on the remote host independently of the link, the shell and the daemon that started them."""
