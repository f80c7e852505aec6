"""Tasks on a loaded file: text, embeddings, images, speech, sessions."""
