"""open, release, inspect, find and ceased, on the command line."""
