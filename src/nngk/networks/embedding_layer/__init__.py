"""How the embedding layer starts, and how it is made narrower after training."""
