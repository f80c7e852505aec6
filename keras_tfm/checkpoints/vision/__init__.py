"""Tables of models of images, and of images and texts."""
