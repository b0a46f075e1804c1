"""Commands that live on the far side, whatever becomes of the link, the shell and the daemon that started them."""
