"""Control sockets: a connection as OpenSSH's ``ssh`` finds it behind ControlPath, with what ssh asks for there."""
