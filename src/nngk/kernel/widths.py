"""How narrow and how wide a kernel may be: beyond, squares of σ leave the range of float32."""

NARROWEST, WIDEST = 1e-15, 1e15
