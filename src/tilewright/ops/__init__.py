"""What a user calls, on arrays people already have."""
