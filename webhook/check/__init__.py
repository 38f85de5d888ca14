"""The process of `interlock kueue`: Kueue's admission check."""
