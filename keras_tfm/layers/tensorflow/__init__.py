"""TensorFlow-only gradients and kernels; each has a portable form and a test that both agree."""
