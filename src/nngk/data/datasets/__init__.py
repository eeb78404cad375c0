"""The published datasets: their official layouts, sizes and sources."""
