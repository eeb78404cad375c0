"""The losses of ``nngk.kernel`` fused for a GPU."""
