"""Who did what, to which machine, and how it ended: the audit log, its search and its verification."""
