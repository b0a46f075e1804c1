"""Commands that run on the far side independently of the link, the shell and the daemon that started them."""
