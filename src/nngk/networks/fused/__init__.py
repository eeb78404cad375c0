"""Operations that only a GPU needs fused, and what a CPU does in one pass."""
