"""Between hospitals: keys and kits, what a site lets out, what it remembers, and the runs across them."""
