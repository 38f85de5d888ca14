"""The tests of credentials."""
