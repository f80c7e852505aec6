"""What is in a file, and how fast it runs."""
