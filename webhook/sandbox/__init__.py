"""A test bench: an in-memory Kubernetes API server and small stand-ins for the controllers."""
