"""A stored connection as a live transport: its chain of links, its login, its second link."""
