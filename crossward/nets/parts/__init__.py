"""Parts that methods add to a network: heads, generators, and what joins them to it."""
