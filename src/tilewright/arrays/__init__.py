"""The arrays that a caller passes and gets: those of any library as views, their dtypes, extents and streams."""
