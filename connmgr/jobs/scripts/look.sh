say ok
