"""TensorFlow-only gradients and kernels; each has a portable twin and a test that both agree."""
