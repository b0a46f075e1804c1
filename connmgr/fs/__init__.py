"""Files of the machines that connections lead to, and blobs for their transfer."""
