"""Across real hospitals: what runs at a site and at the coordinator."""
