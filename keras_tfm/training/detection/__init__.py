"""Object detection: losses and metrics."""
