"""Models and layers of KerasHub: a table per family, as for Hugging Face folders."""
