"""Files of the machines that connections lead to, and the blobs that are on their way to them."""
