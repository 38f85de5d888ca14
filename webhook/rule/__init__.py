"""What decides. Pure: no I/O, no clock, no log."""
