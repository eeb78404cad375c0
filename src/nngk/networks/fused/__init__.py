"""Operations that only a GPU needs fused."""
