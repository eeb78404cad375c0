"""The networks below the embedding layer."""
