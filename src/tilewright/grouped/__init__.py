"""Products in groups of any size: what of a row or a column belongs to which matrix is known to the device alone."""
