"""Files of the machines that connections lead to, and the blobs in transfer."""
