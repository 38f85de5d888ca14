"""The process of `interlock serve`: reviews over TLS, probes, metrics."""
