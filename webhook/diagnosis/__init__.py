"""What is wrong with a cluster, told by what was read of it: documents in, findings out. Pure."""
