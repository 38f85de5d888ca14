"""open, release, inspect, find, ceased and doctor, on the command line."""
