exit $status
