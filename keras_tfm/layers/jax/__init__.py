"""JAX-only attention and dropout; each has a portable form and a test that both agree."""
