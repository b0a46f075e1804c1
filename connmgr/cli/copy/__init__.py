"""``connmgr cp``: files and directories, to, from and between connections."""
