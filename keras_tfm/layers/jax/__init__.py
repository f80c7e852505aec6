"""JAX-only attention and dropout; each has a portable twin and a test that both agree."""
