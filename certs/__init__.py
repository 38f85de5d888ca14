"""The certificates the guard serves with."""
