"""What a caller passes and gets: arrays of any library as views, their dtypes, extents and streams."""
