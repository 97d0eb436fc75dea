"""Protection of what leaves a site: noise and its accounting, and sums that show no parts."""
