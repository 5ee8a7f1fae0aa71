"""One file for each family of instructions. A new family is a new file here: the registry finds it by itself."""
