"""The report: what run directories say, as one page that opens from disk, and as figures for a paper."""
