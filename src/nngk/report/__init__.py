"""One page about a model, which opens anywhere."""
