"""Gradients and kernels of TensorFlow alone; each has a portable twin, and a test of both."""
