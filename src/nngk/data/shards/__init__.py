"""Pictures that lie in large files, many in each: tar files as WebDataset writes them, and Parquet."""
