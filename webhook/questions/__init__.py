"""What is asked of the cluster before anything is allowed: reads in, verdict out."""
